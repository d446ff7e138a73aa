#include "kernels/gpu_memory.h"

#include "kernels/gpu.h"

namespace tf_onebit {
namespace gpu {

const char* Copy(void* to, const void* from, int64_t bytes, void* stream) {
  return TextOf(
      cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream)));
}

}  // namespace gpu
}  // namespace tf_onebit
