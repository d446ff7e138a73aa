// The order of sums, which is the same on all processors, so that each gets the same bits.
//
// A run of values is cut into blocks of kBlockSize. Within a block there are 32 partial sums in
// float32, one for each bit of a code word. Value i is added to lane i % 32, in the order of i.
// SumOfLanes adds the lanes as a tree. The blocks' sums are added in float64, from first to last
// within a column. A lane adds at most kBlockSize / 32 values, so the error does not grow with the
// length of the run.

#ifndef TF_ONEBIT_LIB_LANES_H_
#define TF_ONEBIT_LIB_LANES_H_

#include <cstdint>
#include <vector>

#include "lib/host_device.h"

namespace tf_onebit {

constexpr int kWordBits = 32;
constexpr int64_t kBlockSize = 4096;

// Returns false for NaN and the infinities, whose difference from themselves is NaN.
TF_ONEBIT_HOST_DEVICE bool IsFinite(float value) { return value - value == 0; }
TF_ONEBIT_HOST_DEVICE bool IsFinite(double value) { return value - value == 0; }

// Also leaves the sum in lanes[0]. The order is the same as in a warp's shuffle-down reduction. It
// is a template, so that each step has a constant width and becomes a vector instruction.
template <int kWidth = kWordBits / 2, typename Value>
TF_ONEBIT_HOST_DEVICE Value SumOfLanes(Value* lanes) {
  for (int lane = 0; lane < kWidth; ++lane) lanes[lane] += lanes[lane + kWidth];
  if constexpr (kWidth > 1) SumOfLanes<kWidth / 2>(lanes);
  return lanes[0];
}

static inline float SumOfSquares(const float* values, int64_t count) {
  float lanes[kWordBits] = {};
  for (int64_t i = 0; i < count; ++i) lanes[i % kWordBits] += values[i] * values[i];
  return SumOfLanes(lanes);
}

// Sums of many columns or blocks are also added up in lanes, but in more of them: one for each
// thread of a GPU's block.
constexpr int kManyLanes = 1024;

static inline double SumOfMany(const double* sums, int64_t count) {
  std::vector<double> lanes(kManyLanes);
  for (int64_t i = 0; i < count; ++i) lanes[i % kManyLanes] += sums[i];
  return SumOfLanes<kManyLanes / 2>(lanes.data());
}

}  // namespace tf_onebit

#endif  // TF_ONEBIT_LIB_LANES_H_
