// Transforms of a block of values: the CPU loops, chosen for the processor at run time. Every
// instruction set gives the same bits.
//
// A block is at most kBlockSize values. No pointer needs more alignment than its type. `out` may be
// `gradient`. No other two arguments may overlap. State that would not be finite keeps its value.

#ifndef TF_ONEBIT_KERNELS_TRANSFORM_BLOCKS_H_
#define TF_ONEBIT_KERNELS_TRANSFORM_BLOCKS_H_

#include <cstdint>

#include "lib/lanes.h"
#include "lib/transforms.h"

namespace tf_onebit {

struct TransformBlocks {
  const char* name;  // "avx512", "avx2" or "plain"

  // average_i += share * (gradient_i^2 - average_i). Returns the sum of sqrt(average_i).
  float (*accumulate)(const float* gradient, float* average, int64_t count, float share);

  // out_i = gradient_i / max(sqrt(average_i) * normalizer.per_mean, normalizer.floor)
  void (*normalize)(const float* gradient, const float* average, int64_t count,
                    Normalizer normalizer, float* out);

  // velocity_i = momentum * velocity_i + factor * gradient_i
  // out_i = velocity_i, or momentum * velocity_i + factor * gradient_i if `nesterov`
  void (*momentum)(const float* gradient, float* velocity, int64_t count, MomentumRule rule,
                   float factor, float* out);

  // average_i += share_of_gradient * (gradient_i - average_i)
  // square_i += share_of_square * (SquareLessNoise(gradient_i, ...) - square_i)
  // out_i = factor * average_i / (sqrt(square_i) + epsilon)
  // If the square would not be finite, both keep their values, and out_i is NaN.
  void (*adam)(const float* gradient, float* average, float* square, int64_t count, AdamRule rule,
               AdamStep step, float* out);
};

// The table to use; see simd.h.
const TransformBlocks& GetTransformBlocks();

// The tables that this processor runs, widest first, for tests; ends with nullptr.
const TransformBlocks* const* SupportedTransformBlocks();

}  // namespace tf_onebit

#endif  // TF_ONEBIT_KERNELS_TRANSFORM_BLOCKS_H_
