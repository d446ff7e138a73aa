// What the library was built from, so that Python can tell a stale one before loading its ops, and
// what for.

#include "kernels/simd.h"

extern "C" {

const char* tf_onebit_build_info() {
  return "version=" TF_ONEBIT_VERSION " tensorflow=" TENSORFLOW_VERSION;
}

const char* tf_onebit_simd() { return tf_onebit::ChosenSimdName(); }

// Of the kernels for GPUs; empty: there are none.
const char* tf_onebit_cuda_version() { return TF_ONEBIT_CUDA_VERSION; }
const char* tf_onebit_gpu_targets() { return TF_ONEBIT_GPU_TARGETS; }

}  // extern "C"
