// The mathematics of the one-bit quantizer, for host and device.

#ifndef TF_ONEBIT_LIB_ONE_BIT_H_
#define TF_ONEBIT_LIB_ONE_BIT_H_

#include <cstdint>

#include "lib/lanes.h"

namespace tf_onebit {

// What the two codes stand for.
//   kMean       threshold 0; each level is the mean of the corrected values that have its code
//               (0 where there are none)
//   kSymmetric  threshold is the mean of the corrected values; levels are that mean minus and
//               plus the mean absolute deviation from it
enum class LevelRule { kMean, kSymmetric };

// How values are encoded, and what encoding updates.
struct OneBitQuantizer {
  LevelRule rule;
  float* residual;        // nullptr: there is no error feedback
  float* sum_of_squares;  // of the new residual
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

}  // namespace tf_onebit

#endif  // TF_ONEBIT_LIB_ONE_BIT_H_
