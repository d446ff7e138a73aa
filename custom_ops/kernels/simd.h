// Which instruction set's kernels to use. Kernels come in tables, one for each instruction set:
// "avx512", "avx2" and "plain" on x86-64, elsewhere "plain" alone.

#ifndef TF_ONEBIT_KERNELS_SIMD_H_
#define TF_ONEBIT_KERNELS_SIMD_H_

namespace tf_onebit {

// Index of the widest of them that this processor runs.
int WidestSimd();

// Index of the one to use: the widest, or a narrower one that the environment variable
// TF_ONEBIT_SIMD asks for by its name. A value that is unknown, or asks for more than the processor
// has, changes nothing. Read once.
int ChosenSimd();
const char* ChosenSimdName();

}  // namespace tf_onebit

#endif  // TF_ONEBIT_KERNELS_SIMD_H_
