// The order of sums, which is one for all processors, so that each gets the same bits.
//
// A run of values is cut into blocks of kBlockSize. Within a block there are 32 partial sums in
// float32, one for each bit of a code word: value i is added to lane i % 32, in the order of i.
// SumOfLanes adds the lanes as a tree, and the blocks' sums are added in float64, first to last. A
// lane adds at most kBlockSize / 32 values, which keeps the error the same however long the run.

#ifndef TF_ONEBIT_LIB_LANES_H_
#define TF_ONEBIT_LIB_LANES_H_

#include <cstdint>

// Static, because each source file is compiled for its own instruction set and must not share the
// code of an inline function with the others.
#ifdef __CUDACC__
#define TF_ONEBIT_HOST_DEVICE __host__ __device__ static inline
#else
#define TF_ONEBIT_HOST_DEVICE static inline
#endif

namespace tf_onebit {

constexpr int kWordBits = 32;
constexpr int64_t kBlockSize = 4096;

// False for NaN and the infinities: their difference from themselves is NaN.
TF_ONEBIT_HOST_DEVICE bool IsFinite(double value) { return value - value == 0; }

// Leaves the sum in lanes[0] too; the order is that of a warp's shuffle-down reduction. A template,
// so that each step has a constant width and becomes a vector instruction.
template <int kWidth = kWordBits / 2>
TF_ONEBIT_HOST_DEVICE float SumOfLanes(float* lanes) {
  for (int lane = 0; lane < kWidth; ++lane) lanes[lane] += lanes[lane + kWidth];
  if constexpr (kWidth > 1) SumOfLanes<kWidth / 2>(lanes);
  return lanes[0];
}

}  // namespace tf_onebit

#endif  // TF_ONEBIT_LIB_LANES_H_
