// The mathematics of the one-bit quantizer, for host and device.

#ifndef TF_ONEBIT_LIB_ONE_BIT_H_
#define TF_ONEBIT_LIB_ONE_BIT_H_

#include <cstdint>

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
  int bits;               // rows of a message. More than one needs error feedback
  float* residual;        // nullptr without error feedback
  float* sum_of_squares;  // sum of squares of the new residual
};

TF_ONEBIT_HOST_DEVICE int64_t NumWords(int64_t count) {
  return (count + kWordBits - 1) / kWordBits;
}

TF_ONEBIT_HOST_DEVICE bool CodeOf(float corrected, float threshold) {
  return corrected >= threshold;
}

TF_ONEBIT_HOST_DEVICE float NewResidual(float corrected, float level) { return corrected - level; }

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
