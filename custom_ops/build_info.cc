// Facts about the build. Python reads them to recognize a stale library before it loads its ops.

#include "kernels/simd.h"

extern "C" {

const char* tf_onebit_build_info() {
  return "version=" TF_ONEBIT_VERSION " tensorflow=" TENSORFLOW_VERSION;
}

const char* tf_onebit_simd() { return tf_onebit::ChosenSimdName(); }

// Facts about the GPU kernels. They are empty if there are none.
const char* tf_onebit_cuda_version() { return TF_ONEBIT_CUDA_VERSION; }
const char* tf_onebit_gpu_targets() { return TF_ONEBIT_GPU_TARGETS; }

}  // extern "C"
