// Threshold-sparse messages: the selection of values, and the format.
//
// A message is a run of 32-bit words: a header, and then the sent values in ascending order. Bit 31
// of a code is set for a negative value. The other bits are the value's index. So a message
// addresses up to 2^31 values. If there are more, each part has a message of its own.

#ifndef TF_ONEBIT_LIB_THRESHOLD_H_
#define TF_ONEBIT_LIB_THRESHOLD_H_

#include <cstdint>

#include "lib/float16.h"
#include "lib/lanes.h"

namespace tf_onebit {

constexpr int64_t kMaxPartSize = int64_t{1} << 31;

constexpr uint32_t kNegativeBit = 0x80000000u;

// The words of a header.
enum ThresholdHeader {
  kFlagWord,       // 0, or 1 + the index of the first gradient with a value that is not finite
  kWordsWord,      // length of the message, with its header and without padding
  kCountWord,      // number of sent values
  kExceedingWord,  // number of values above the threshold: sent values, and values that did not fit
  kStepWord,       // what receivers add for a sent value: a float, at least 0
  kSquaresWord,    // sum of squares of the residual: a float
  kHeaderWords
};

// Messages as rows of `num_words` words each. Row r is about part r % (number of parts).
struct ThresholdRows {
  const int32_t* words;
  int64_t num_rows, num_words;

  TF_ONEBIT_HOST_DEVICE_MEMBER const int32_t* row(int64_t r) const {
    return words + r * num_words;
  }
};

TF_ONEBIT_HOST_DEVICE uint32_t IndexOf(uint32_t code) { return code & ~kNegativeBit; }

// Returns +step or -step.
TF_ONEBIT_HOST_DEVICE float SignedStep(uint32_t code, float step) {
  return FloatOf(BitsOf(step) | (code & kNegativeBit));
}

// What a message does to variables: it subtracts its values from them, or clears them where it has
// values.
enum class ThresholdUpdate { kSubtract, kClear };

TF_ONEBIT_HOST_DEVICE float Updated(float value, ThresholdUpdate update, uint32_t code,
                                    float step) {
  return update == ThresholdUpdate::kClear ? 0.0f : value - SignedStep(code, step);
}

// Returns whether codes have ascending indices below `size`.
static inline bool AreAscending(const uint32_t* codes, int64_t count, int64_t size) {
  int64_t previous = -1;
  bool ascending = true;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t index = IndexOf(codes[i]);
    ascending &= index > previous;
    previous = index;
  }
  return ascending && previous < size;
}

// Returns the fault of a message about `size` values in at most `num_words` words, or nullptr. It
// never reads beyond the words, whatever their content.
static inline const char* HeaderFault(const int32_t* words, int64_t num_words, int64_t size) {
  if (num_words < kHeaderWords) return "it ends within its header";
  const int64_t length = static_cast<uint32_t>(words[kWordsWord]);
  if (length < kHeaderWords || length > num_words) return "its length is not that of its words";
  if (words[kFlagWord] < 0) return "its flag is negative";
  const uint32_t count = words[kCountWord], exceeding = words[kExceedingWord];
  if (count > size || exceeding > size) return "it has more values than there are";
  if (count > exceeding) return "it has more values than exceed the threshold";
  const float step = FloatOf(static_cast<uint32_t>(words[kStepWord]));
  if (!(step >= 0) || !IsFinite(step)) return "its step is not a number, at least 0";
  const float squares = FloatOf(static_cast<uint32_t>(words[kSquaresWord]));
  // If gradients are not finite, the residual may not be finite, either.
  if (words[kFlagWord] == 0 && !(squares >= 0)) return "its sum of squares is negative or none";
  return nullptr;
}

static inline const char* ThresholdMessageFault(const int32_t* words, int64_t num_words,
                                                int64_t size) {
  if (const char* fault = HeaderFault(words, num_words, size)) return fault;
  const int64_t count = static_cast<uint32_t>(words[kCountWord]);
  if (static_cast<uint32_t>(words[kWordsWord]) != kHeaderWords + count) {
    return "its length and its number of values do not agree";
  }
  const uint32_t* const codes = reinterpret_cast<const uint32_t*>(words + kHeaderWords);
  if (!AreAscending(codes, count, size)) {
    return "its indices do not ascend, or there are fewer values";
  }
  return nullptr;
}

}  // namespace tf_onebit

#endif  // TF_ONEBIT_LIB_THRESHOLD_H_
