// Copies to and within the memory of a GPU, on a stream. Functions return nullptr, or CUDA's error
// message.

#ifndef TF_ONEBIT_KERNELS_GPU_MEMORY_H_
#define TF_ONEBIT_KERNELS_GPU_MEMORY_H_

#include <cstdint>

namespace tf_onebit {
namespace gpu {

// `from` is on the device, or in host memory that must not change afterwards.
const char* Copy(void* to, const void* from, int64_t bytes, void* stream);

}  // namespace gpu
}  // namespace tf_onebit

#endif  // TF_ONEBIT_KERNELS_GPU_MEMORY_H_
