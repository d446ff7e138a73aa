// Chooses the instruction set of kernels. Kernels come in tables, one for each instruction set:
// "avx512", "avx2" and "plain" on x86-64, and only "plain" elsewhere.

#ifndef TF_ONEBIT_KERNELS_SIMD_H_
#define TF_ONEBIT_KERNELS_SIMD_H_

namespace tf_onebit {

// Returns the index of the widest table that this processor runs.
int WidestSimd();

// Returns the index of the table to use. It is the widest, or a narrower one that the environment
// variable TF_ONEBIT_SIMD names. An unknown name, or one that the processor does not support,
// changes nothing. The variable is read once.
int ChosenSimd();
const char* ChosenSimdName();

}  // namespace tf_onebit

#endif  // TF_ONEBIT_KERNELS_SIMD_H_
