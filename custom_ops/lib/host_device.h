// Marks functions that CUDA kernels call as well.
//
// They are static. Each source file is compiled for its own instruction set, and must not share the
// code of an inline function with the others.

#ifndef TF_ONEBIT_LIB_HOST_DEVICE_H_
#define TF_ONEBIT_LIB_HOST_DEVICE_H_

#ifdef __CUDACC__
#define TF_ONEBIT_HOST_DEVICE_MEMBER __host__ __device__
#else
#define TF_ONEBIT_HOST_DEVICE_MEMBER
#endif
#define TF_ONEBIT_HOST_DEVICE TF_ONEBIT_HOST_DEVICE_MEMBER static inline

#endif  // TF_ONEBIT_LIB_HOST_DEVICE_H_
