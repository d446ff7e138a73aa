// The loops of threshold_blocks.h over the vectors of one instruction set.
//
// Each threshold_blocks_<name>.cc makes its table from the vectors of simd_<name>.h.

#ifndef TF_ONEBIT_KERNELS_THRESHOLD_BLOCKS_LOOPS_H_
#define TF_ONEBIT_KERNELS_THRESHOLD_BLOCKS_LOOPS_H_

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/simd_loops.h"
#include "kernels/threshold_blocks.h"
#include "lib/float16.h"
#include "lib/lanes.h"
#include "lib/threshold.h"

namespace tf_onebit {
namespace {

constexpr uint32_t kAllBits = 0xFFFFFFFFu;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Appends a code for each bit of `exceeding`, which stand for the values of a word.
inline uint32_t* AppendCodes(uint32_t exceeding, uint32_t negative, uint32_t first_index,
                             uint32_t* codes) {
  for (; exceeding != 0; exceeding &= exceeding - 1) {
    const int bit = __builtin_ctz(exceeding);
    *codes++ = (first_index + bit) | (negative >> bit << 31);
  }
  return codes;
}

template <typename Floats, typename T>
EncodedBlock EncodeBlock(const T* gradient, float* residual, int64_t count,
                         const ThresholdRule& rule, uint32_t first_index, uint32_t* codes) {
  const auto zero = Floats::Broadcast(0.0f);
  const auto infinities = Floats::Broadcast(kInfinity);
  const auto thresholds = Floats::Broadcast(rule.threshold);
  const auto sent = Floats::Broadcast(rule.magnitude);
  const auto minus_sent = Floats::Broadcast(-rule.magnitude);
  const auto decays = Floats::Broadcast(rule.decay);
  LaneSums<Floats> squares;
  uint32_t all_finite = kAllBits;
  uint32_t* end = codes;
  int64_t i = 0;
  for (; i + kWordBits <= count; i += kWordBits) {
    typename Floats::Mask finite[kParts<Floats>], exceeding[kParts<Floats>];
    typename Floats::Mask negative[kParts<Floats>];
    for (int p = 0; p < kParts<Floats>; ++p) {
      const int64_t at = i + p * Floats::kWidth;
      const auto old = Floats::Load(residual + at);
      const auto corrected = Floats::Load(gradient + at) + decays * old;
      const auto distance = Floats::Abs(corrected);  // from zero
      finite[p] = Floats::Greater(infinities, distance);
      exceeding[p] = Floats::Greater(distance, thresholds);
      negative[p] = Floats::Greater(zero, corrected);
      const auto step = Floats::Select(negative[p], minus_sent, sent);
      const auto rest = corrected - Floats::Select(exceeding[p], step, zero);
      const auto kept = Floats::Select(finite[p], rest, old);
      Floats::template Store<false>(residual + at, kept);
      squares.part[p] = squares.part[p] + kept * kept;
    }
    const uint32_t finite_word = Floats::Pack(finite);
    const uint32_t exceeding_word = Floats::Pack(exceeding) & finite_word;
    all_finite &= finite_word;
    if (exceeding_word != 0) {
      end = AppendCodes(exceeding_word, Floats::Pack(negative),
                        first_index + static_cast<uint32_t>(i), end);
    }
  }
  float lanes[kWordBits];
  squares.Store(lanes);
  for (int lane = 0; i + lane < count; ++lane) {
    float& kept = residual[i + lane];
    const float corrected = ToFloat(gradient[i + lane]) + rule.decay * kept;
    if (IsFinite(corrected)) {
      const bool exceeding = __builtin_fabsf(corrected) > rule.threshold, negative = corrected < 0;
      end = AppendCodes(exceeding, negative, first_index + static_cast<uint32_t>(i + lane), end);
      kept = exceeding ? corrected - (negative ? -rule.magnitude : rule.magnitude) : corrected;
    } else {
      all_finite = 0;
    }
    lanes[lane] += kept * kept;
  }
  return {end - codes, SumOfLanes(lanes), all_finite == kAllBits};
}

// Returns the vectors of 32 sums, scaled, and rounded to T if they are 16-bit patterns.
template <typename Floats, typename Halves>
struct Scaled {
  float scale;

  void Vectors(const float* sums, float*, typename Floats::Vector* vectors) const {
    const auto scales = Floats::Broadcast(scale);
    for (int p = 0; p < kParts<Floats>; ++p) {
      vectors[p] = Floats::Load(sums + p * Floats::kWidth) * scales;
    }
  }

  template <typename T>
  void Vectors(const float* sums, T*, typename Halves::Vector* vectors) const {
    uint32_t any_bits = 0;
    for (int i = 0; i < kWordBits; ++i) any_bits |= BitsOf(sums[i]);
    for (int p = 0; p < kParts<Halves>; ++p) vectors[p] = Halves::Broadcast(T{0});
    if (any_bits == 0) return;
    T rounded[kWordBits];
    for (int i = 0; i < kWordBits; ++i) rounded[i] = FromFloat<T>(sums[i] * scale);
    std::memcpy(vectors, rounded, sizeof(rounded));
  }
};

template <typename Floats, typename Halves, typename T>
using VectorsFor = std::conditional_t<sizeof(T) == sizeof(float), Floats, Halves>;

template <typename Floats, typename Halves, typename T>
void DecodeBlock(CodeRun* runs, int64_t num_runs, uint32_t first_index, int64_t count, float scale,
                 bool stream, T* out) {
  // These fit into the first cache. There is one word more, because vectors of sums may begin
  // anywhere.
  float sums[kBlockSize + kWordBits];
  std::memset(sums, 0, (count + kWordBits) * sizeof(float));
  for (int64_t k = 0; k < num_runs; ++k) {
    CodeRun& run = runs[k];
    while (run.next != run.end && IndexOf(*run.next) - first_index < count) {
      sums[IndexOf(*run.next) - first_index] += SignedStep(*run.next, run.step);
      ++run.next;
    }
  }
  const Scaled<Floats, Halves> scaled{scale};
  WriteRun<VectorsFor<Floats, Halves, T>>(count, stream, out, [&](int64_t i, int64_t, auto* vectors) {
    scaled.Vectors(sums + i, out, vectors);
  });
}

template <typename Floats, typename Halves>
constexpr ThresholdBlocks MakeThresholdBlocks(const char* name) {
  return {name,
          EncodeBlock<Floats, float>,
          EncodeBlock<Floats, float16>,
          EncodeBlock<Floats, bfloat16>,
          DecodeBlock<Floats, Halves, float>,
          DecodeBlock<Floats, Halves, float16>,
          DecodeBlock<Floats, Halves, bfloat16>,
          Floats::FinishStreaming};
}

}  // namespace
}  // namespace tf_onebit

#endif  // TF_ONEBIT_KERNELS_THRESHOLD_BLOCKS_LOOPS_H_
