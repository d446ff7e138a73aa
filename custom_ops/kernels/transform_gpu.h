// The ops of transforms on a GPU: transform_kernels.cc launches them on a stream. one_bit_gpu.h
// states common rules. State that would not be finite keeps its value.

#ifndef TF_ONEBIT_KERNELS_TRANSFORM_GPU_H_
#define TF_ONEBIT_KERNELS_TRANSFORM_GPU_H_

#include <cstdint>

#include "lib/parts.h"
#include "lib/transforms.h"

namespace tf_onebit {
namespace gpu {

int64_t AdagradScratchBytes(const Parts& runs);

// `runs` are tensors of one part, with values one after another. `table` is their table on the
// device. `share` is one float64. `sums` and `means` have one value for each run. All are on the
// device, and are not checked.
const char* AdagradAccumulate(const Parts& runs, const int64_t* table, const float* gradient,
                              const double* share, float* average, double* sums, void* scratch,
                              void* stream);

// `out` may be `gradient`.
const char* AdagradNormalize(const Parts& runs, const float* gradient, const float* average,
                             const double* means, float epsilon, float* out, void* stream);

// `factor` is one value on the device. `out` may be `gradient`.
const char* Momentum(int64_t count, const float* gradient, float* velocity, MomentumRule rule,
                     const float* factor, float* out, void* stream);
const char* Adam(int64_t count, const float* gradient, float* average, float* square, AdamRule rule,
                 AdamStepAt step, float* out, void* stream);

}  // namespace gpu
}  // namespace tf_onebit

#endif  // TF_ONEBIT_KERNELS_TRANSFORM_GPU_H_
