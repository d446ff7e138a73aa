// The mathematics of the one-bit quantizer, for host and device.

#ifndef TF_ONEBIT_LIB_ONE_BIT_H_
#define TF_ONEBIT_LIB_ONE_BIT_H_

#include <cstdint>
#include <type_traits>

#include "lib/float16.h"
#include "lib/float_type.h"
#include "lib/lanes.h"

namespace tf_onebit {

// The threshold between the two codes, and the level of each.
//   kMean       The threshold is 0. Each level is the mean of the corrected values with its code,
//               or 0 if there are none.
//   kSymmetric  The threshold is the mean of the corrected values. The levels are this mean minus
//               and plus the mean absolute deviation from it.
enum class LevelRule { kMean, kSymmetric };

// A message about a shard has one row, or two. The second row quantizes what the first one leaves,
// so a value has two bits, and its levels add up.
constexpr int kMaxBits = 2;

// The settings of encoding, and the memory that encoding updates.
struct OneBitQuantizer {
  LevelRule rule;
  int bits;                 // rows of a message. More than one needs error feedback
  FloatType residual_type;  // float32 or bfloat16
  void* residual;           // nullptr without error feedback
  float* sum_of_squares;    // sum of squares of the new residual
};

// Calls work(residual) with a pointer of the residual's type.
template <typename Work>
auto WithResidual(const OneBitQuantizer& quantizer, const Work& work) {
  if (quantizer.residual_type == FloatType::kBfloat16) {
    return work(static_cast<bfloat16*>(quantizer.residual));
  }
  return work(static_cast<float*>(quantizer.residual));
}

TF_ONEBIT_HOST_DEVICE int64_t NumWords(int64_t count) {
  return (count + kWordBits - 1) / kWordBits;
}

TF_ONEBIT_HOST_DEVICE bool CodeOf(float corrected, float threshold) {
  return corrected >= threshold;
}

TF_ONEBIT_HOST_DEVICE float NewResidual(float corrected, float level) { return corrected - level; }

// Rounds the residuals of a column to bfloat16. To the nearest, a gradient that is much smaller than
// its residual would be lost in every step. So they are rounded up or down: the nearer a value is to
// one of its neighbors, the more often to this. Errors then cancel out over time.
//
// What decides is a sequence that fills [0, 1) evenly, with a step of the golden ratio. Where it
// begins depends on the bits of a column's levels, which change in nearly every step of training.
struct Dither {
  static constexpr uint32_t kStep = 0x9E3779B9u;
  static constexpr uint32_t kKept = 0xFFFF0000u;  // the bits of a float that bfloat16 has
  uint32_t first;

  TF_ONEBIT_HOST_DEVICE_MEMBER explicit Dither(const float levels[2])
      : first(BitsOf(levels[0]) * 0x85EBCA6Bu ^ BitsOf(levels[1]) * 0xC2B2AE35u) {}

  // Returns what value i adds to its bits before the lower half is cut off.
  TF_ONEBIT_HOST_DEVICE_MEMBER uint32_t Of(int64_t i) const {
    return (first + static_cast<uint32_t>(i) * kStep) >> 16;
  }
};

// Rounds residual i of a column to the type in which it is stored: to R, as a float.
template <typename R>
TF_ONEBIT_HOST_DEVICE float Stored(float residual, const Dither& dither, int64_t i) {
  if constexpr (std::is_same_v<R, float>) return residual;
  return FloatOf((BitsOf(residual) + dither.Of(i)) & Dither::kKept);
}

TF_ONEBIT_HOST_DEVICE float Mean(double sum, int64_t count) {
  return count == 0 ? 0.0f : static_cast<float>(sum / static_cast<double>(count));
}

// Updates the average of a value's squares, from which its scale is made. `Value` is float, or a
// vector of floats. All arithmetic is rounded step by step, so that both have the same bits.
template <typename Value>
TF_ONEBIT_HOST_DEVICE Value LearnedSquare(Value square, Value update, Value kept, Value learned) {
  return kept * square + learned * (update * update);
}
constexpr float kKeptOfSquare = 0.95f, kLearnedOfSquare = 0.05f;

}  // namespace tf_onebit

#endif  // TF_ONEBIT_LIB_ONE_BIT_H_
