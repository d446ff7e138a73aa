// The ops of transforms on a GPU: what transform_kernels.cc has launched on a stream. See
// one_bit_gpu.h for what holds for all of them. State that would not be finite stays as it was.

#ifndef TF_ONEBIT_KERNELS_TRANSFORM_GPU_H_
#define TF_ONEBIT_KERNELS_TRANSFORM_GPU_H_

#include <cstdint>

#include "lib/parts.h"

namespace tf_onebit {
namespace gpu {

int64_t AdagradScratchBytes(const Parts& runs);

// `runs` are tensors of one part, with values one after another, and `table` theirs on the device.
// `share` is one float64, `sums` and `means` are one for each run, on the device: nothing checks
// them.
const char* AdagradAccumulate(const Parts& runs, const int64_t* table, const float* gradient,
                              const double* share, float* average, double* sums, void* scratch,
                              void* stream);

// `out` may be `gradient`.
const char* AdagradNormalize(const Parts& runs, const float* gradient, const float* average,
                             const double* means, float epsilon, float* out, void* stream);

const char* Momentum(int64_t count, const float* gradient, float* velocity, float momentum,
                     bool nesterov, float* out, void* stream);

}  // namespace gpu
}  // namespace tf_onebit

#endif  // TF_ONEBIT_KERNELS_TRANSFORM_GPU_H_
