// The loops of one_bit_columns.h over the vectors of one instruction set.
//
// Each one_bit_columns_<name>.cc makes its table from the vectors of simd_<name>.h.

#ifndef TF_ONEBIT_KERNELS_ONE_BIT_COLUMNS_LOOPS_H_
#define TF_ONEBIT_KERNELS_ONE_BIT_COLUMNS_LOOPS_H_

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "kernels/one_bit_columns.h"
#include "kernels/simd_loops.h"
#include "lib/float16.h"
#include "lib/one_bit.h"

namespace tf_onebit {
namespace {

struct SumsByCode {
  double sum[2] = {0, 0};
  int64_t num_ones = 0;
};

// Codes the values [begin, end) at threshold 0, and adds them to the sums of their codes.
template <typename Floats, typename Values>
void EncodeBlockByMean(const Values& values, int64_t begin, int64_t end, uint32_t* codes,
                       SumsByCode& sums) {
  const auto zero = Floats::Broadcast(0.0f);
  LaneSums<Floats> below, above;
  int64_t i = begin;
  for (; i + kWordBits <= end; i += kWordBits) {
    typename Floats::Mask mask[kParts<Floats>];
    for (int p = 0; p < kParts<Floats>; ++p) {
      const auto corrected = values.Vector(i + p * Floats::kWidth);
      mask[p] = Floats::GreaterEqual(corrected, zero);
      above.part[p] = Floats::AddWhere(mask[p], above.part[p], corrected);
      below.part[p] = Floats::AddWhereNot(mask[p], below.part[p], corrected);
    }
    const uint32_t word = Floats::Pack(mask);
    sums.num_ones += __builtin_popcount(word);
    codes[i / kWordBits] = word;
  }
  float lanes[2][kWordBits];
  below.Store(lanes[0]);
  above.Store(lanes[1]);
  if (i < end) {
    uint32_t word = 0;
    for (int lane = 0; i + lane < end; ++lane) {
      const float corrected = values.Scalar(i + lane);
      const bool code = CodeOf(corrected, 0.0f);
      lanes[code][lane] += corrected;
      word |= uint32_t{code} << lane;
    }
    sums.num_ones += __builtin_popcount(word);
    codes[i / kWordBits] = word;
  }
  sums.sum[0] += SumOfLanes(lanes[0]);
  sums.sum[1] += SumOfLanes(lanes[1]);
}

// Returns the sum of the values [begin, end).
template <typename Floats, typename Values>
float SumBlock(const Values& values, int64_t begin, int64_t end) {
  LaneSums<Floats> sums;
  int64_t i = begin;
  for (; i + kWordBits <= end; i += kWordBits) {
    for (int p = 0; p < kParts<Floats>; ++p) {
      sums.part[p] = sums.part[p] + values.Vector(i + p * Floats::kWidth);
    }
  }
  float lanes[kWordBits];
  sums.Store(lanes);
  for (int lane = 0; i + lane < end; ++lane) lanes[lane] += values.Scalar(i + lane);
  return SumOfLanes(lanes);
}

// Codes the values [begin, end) at the threshold `mean`, and returns the sum of |value - mean|.
template <typename Floats, typename Values>
float EncodeBlockByDeviation(const Values& values, int64_t begin, int64_t end, float mean,
                             uint32_t* codes) {
  const auto means = Floats::Broadcast(mean);
  LaneSums<Floats> deviations;
  int64_t i = begin;
  for (; i + kWordBits <= end; i += kWordBits) {
    typename Floats::Mask mask[kParts<Floats>];
    for (int p = 0; p < kParts<Floats>; ++p) {
      const auto corrected = values.Vector(i + p * Floats::kWidth);
      mask[p] = Floats::GreaterEqual(corrected, means);
      deviations.part[p] = deviations.part[p] + Floats::Abs(corrected - means);
    }
    codes[i / kWordBits] = Floats::Pack(mask);
  }
  float lanes[kWordBits];
  deviations.Store(lanes);
  if (i < end) {
    uint32_t word = 0;
    for (int lane = 0; i + lane < end; ++lane) {
      const float corrected = values.Scalar(i + lane);
      lanes[lane] += __builtin_fabsf(corrected - mean);
      word |= uint32_t{CodeOf(corrected, mean)} << lane;
    }
    codes[i / kWordBits] = word;
  }
  return SumOfLanes(lanes);
}

// Stores the new residual of the values [begin, end), and returns its sum of squares.
template <typename Floats, typename T, typename R>
float UpdateResidualBlock(const T* gradient, R* residual, int64_t begin, int64_t end,
                          float threshold, const float levels[2]) {
  const CorrectedValues<Floats, T, R, true> values{gradient, residual};
  const Dither dither(levels);
  const auto thresholds = Floats::Broadcast(threshold);
  const auto zero_level = Floats::Broadcast(levels[0]);
  const auto one_level = Floats::Broadcast(levels[1]);
  const auto next = Floats::Steps(kWordBits * Dither::kStep, 0);
  typename Floats::Words words[kParts<Floats>];
  for (int p = 0; p < kParts<Floats>; ++p) {
    const uint32_t at = static_cast<uint32_t>(begin + p * Floats::kWidth);
    words[p] = Floats::Steps(dither.first + at * Dither::kStep, Dither::kStep);
  }
  LaneSums<Floats> squares;
  int64_t i = begin;
  for (; i + kWordBits <= end; i += kWordBits) {
    for (int p = 0; p < kParts<Floats>; ++p) {
      const int64_t at = i + p * Floats::kWidth;
      const auto corrected = values.Vector(at);
      const auto code = Floats::GreaterEqual(corrected, thresholds);
      auto difference = corrected - Floats::Select(code, one_level, zero_level);
      if constexpr (!std::is_same_v<R, float>) {
        difference = Floats::Dithered(difference, words[p]);
        words[p] = words[p] + next;
      }
      Floats::template Store<false>(residual + at, difference);
      squares.part[p] = squares.part[p] + difference * difference;
    }
  }
  float lanes[kWordBits];
  squares.Store(lanes);
  for (int lane = 0; i + lane < end; ++lane) {
    const float corrected = values.Scalar(i + lane);
    // GCC 12 makes wrong vectors of levels[CodeOf(...)] beside 16-bit stores.
    const float level = CodeOf(corrected, threshold) ? levels[1] : levels[0];
    const float rest = NewResidual(corrected, level);
    const float difference = Stored<R>(rest, dither, i + lane);
    residual[i + lane] = Narrowed<R>(difference);
    lanes[lane] += difference * difference;
  }
  return SumOfLanes(lanes);
}

// Calls `block(begin, end)` for each block of a column.
template <typename Block>
void ForEachBlock(int64_t count, Block block) {
  for (int64_t begin = 0; begin < count; begin += kBlockSize) {
    block(begin, count - begin < kBlockSize ? count : begin + kBlockSize);
  }
}

// Writes codes, levels and the threshold. Returns whether all values and sums are finite.
template <typename Floats, typename Values>
bool QuantizeByMean(const Values& values, int64_t count, float& threshold, float levels[2],
                    uint32_t* codes) {
  SumsByCode sums;
  ForEachBlock(count, [&](int64_t begin, int64_t end) {
    EncodeBlockByMean<Floats>(values, begin, end, codes, sums);
  });
  threshold = 0.0f;
  levels[0] = Mean(sums.sum[0], count - sums.num_ones);
  levels[1] = Mean(sums.sum[1], sums.num_ones);
  return IsFinite(sums.sum[0]) && IsFinite(sums.sum[1]);
}

template <typename Floats, typename Values>
bool QuantizeByDeviation(const Values& values, int64_t count, float& threshold, float levels[2],
                         uint32_t* codes) {
  double sum = 0;
  ForEachBlock(count, [&](int64_t begin, int64_t end) {
    sum += SumBlock<Floats>(values, begin, end);
  });
  if (!IsFinite(sum)) return false;
  const float mean = Mean(sum, count);
  double deviation = 0;
  ForEachBlock(count, [&](int64_t begin, int64_t end) {
    deviation += EncodeBlockByDeviation<Floats>(values, begin, end, mean, codes);
  });
  const float mean_deviation = Mean(deviation, count);
  threshold = mean;
  levels[0] = mean - mean_deviation;
  levels[1] = mean + mean_deviation;
  return IsFinite(deviation);
}

// Encodes the corrected values of a column. When it is read again, `gradient` is added to the
// residual.
template <typename Floats, typename Values, typename T, typename R>
double EncodeValues(const Values& values, const T* gradient, R* residual, int64_t count,
                    LevelRule rule, float levels[2], uint32_t* codes) {
  float threshold;
  const bool finite =
      rule == LevelRule::kMean
          ? QuantizeByMean<Floats>(values, count, threshold, levels, codes)
          : QuantizeByDeviation<Floats>(values, count, threshold, levels, codes);
  if (!finite) {
    levels[0] = levels[1] = 0.0f;
    std::memset(codes, 0, NumWords(count) * sizeof(*codes));
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (residual == nullptr) return 0.0;
  double squares = 0;
  ForEachBlock(count, [&](int64_t begin, int64_t end) {
    squares += UpdateResidualBlock<Floats>(gradient, residual, begin, end, threshold, levels);
  });
  return squares;
}

template <typename Floats, typename T, typename R>
double Encode(const T* gradient, R* residual, int64_t count, LevelRule rule, float levels[2],
              uint32_t* codes) {
  const auto encode = [&](const auto& values) {
    return EncodeValues<Floats>(values, gradient, residual, count, rule, levels, codes);
  };
  return residual != nullptr ? encode(CorrectedValues<Floats, T, R, true>{gradient, residual})
                             : encode(CorrectedValues<Floats, T, R, false>{gradient, nullptr});
}

// The corrected values of a column with scales. It stores the quotients that it has computed.
template <typename Floats, typename T, typename R, bool kHasResidual>
struct ScaledValues {
  const T* gradient;
  const float* scales;
  float* quotients;
  const R* residual;

  typename Floats::Vector Vector(int64_t i) const {
    const auto quotient = Floats::Load(gradient + i) / Floats::Load(scales + i);
    Floats::template Store<false>(quotients + i, quotient);
    if constexpr (kHasResidual) return quotient + Floats::Load(residual + i);
    return quotient;
  }

  float Scalar(int64_t i) const {
    quotients[i] = ToFloat(gradient[i]) / scales[i];
    if constexpr (kHasResidual) return quotients[i] + ToFloat(residual[i]);
    return quotients[i];
  }
};

template <typename Floats, typename T, typename R>
double EncodeScaled(const T* gradient, const float* scales, float* quotients, R* residual,
                    int64_t count, LevelRule rule, float levels[2], uint32_t* codes) {
  const auto encode = [&](const auto& values) {
    return EncodeValues<Floats>(values, quotients, residual, count, rule, levels, codes);
  };
  return residual != nullptr
             ? encode(ScaledValues<Floats, T, R, true>{gradient, scales, quotients, residual})
             : encode(ScaledValues<Floats, T, R, false>{gradient, scales, quotients, nullptr});
}

// Returns the codes of the values [i, i + n), n <= 32, in the low bits of a word.
uint32_t WordAt(const uint32_t* codes, int64_t i, int64_t n) {
  const uint32_t* const word = codes + i / kWordBits;
  const int shift = static_cast<uint64_t>(i) % kWordBits;
  const uint32_t low = word[0] >> shift;
  return shift + n <= kWordBits ? low : low | word[1] << (kWordBits - shift);
}

// Calls work(values_at). values_at(i, n, vectors) decodes the values [i, i + n), n <= 32, of one row
// or two. level(x) is a vector that stands for the sum x of levels.
template <typename Simd, typename Level, typename Work>
void WithDecoded(const int32_t* levels, const int32_t* codes, int64_t stride, int bits,
                 const Level& level, const Work& work) {
  const uint32_t* const first_codes = reinterpret_cast<const uint32_t*>(codes);
  const float* const first = reinterpret_cast<const float*>(levels);
  if (bits == 1) {
    const auto zero = level(first[0]), one = level(first[1]);
    return work([&](int64_t i, int64_t n, auto* values) {
      const uint32_t word = WordAt(first_codes, i, n);
      for (int p = 0; p < kParts<Simd>; ++p) {
        values[p] = Simd::Select(Simd::Expand(word, p), one, zero);
      }
    });
  }
  const uint32_t* const second_codes = first_codes + stride;
  const float* const second = first + stride;
  // The value of the codes 00, 10, 01 and 11, where the first row has the first digit.
  const auto zero_zero = level(first[0] + second[0]), one_zero = level(first[1] + second[0]);
  const auto zero_one = level(first[0] + second[1]), one_one = level(first[1] + second[1]);
  work([&](int64_t i, int64_t n, auto* values) {
    const uint32_t first_word = WordAt(first_codes, i, n), second_word = WordAt(second_codes, i, n);
    for (int p = 0; p < kParts<Simd>; ++p) {
      const auto code = Simd::Expand(first_word, p);
      values[p] = Simd::Select(Simd::Expand(second_word, p),
                               Simd::Select(code, one_one, zero_one),
                               Simd::Select(code, one_zero, zero_zero));
    }
  });
}

// `Simd` is Floats or Halves, whichever has lanes of T's size.
template <typename Simd, typename T>
void Decode(const int32_t* levels, const int32_t* codes, int64_t stride, int bits, int64_t count,
            float scale, bool stream, T* out) {
  const auto level = [&](float sum) { return Simd::Broadcast(FromFloat<T>(scale * sum)); };
  WithDecoded<Simd>(levels, codes, stride, bits, level, [&](const auto& values_at) {
    WriteRun<Simd>(count, stream, out, values_at);
  });
}

// Loads n <= 32 values into the vectors of a word, and reads none behind them.
template <typename Floats>
void LoadWord(const float* from, int64_t n, typename Floats::Vector* vectors) {
  float values[kWordBits] = {};
  if (n < kWordBits) {
    std::memcpy(values, from, n * sizeof(float));
    from = values;
  }
  for (int p = 0; p < kParts<Floats>; ++p) vectors[p] = Floats::Load(from + p * Floats::kWidth);
}

template <typename Floats, typename T>
void DecodeScaled(const int32_t* levels, const int32_t* codes, int64_t stride, int bits,
                  int64_t count, float scale, const float* scales, bool stream, T* out) {
  const auto level = [&](float sum) {
    return Floats::Broadcast(ToFloat(FromFloat<T>(scale * sum)));
  };
  WithDecoded<Floats>(levels, codes, stride, bits, level, [&](const auto& values_at) {
    const auto products_at = [&](int64_t i, int64_t n, auto* products) {
      typename Floats::Vector factors[kParts<Floats>];
      values_at(i, n, products);
      LoadWord<Floats>(scales + i, n, factors);
      for (int p = 0; p < kParts<Floats>; ++p) products[p] = products[p] * factors[p];
    };
    if constexpr (std::is_same_v<T, float>) {
      WriteRun<Floats>(count, stream, out, products_at);
    } else {
      typename Floats::Vector products[kParts<Floats>];
      float wide[kWordBits];
      for (int64_t i = 0; i < count; i += kWordBits) {
        const int64_t n = count - i < kWordBits ? count - i : kWordBits;
        products_at(i, n, products);
        for (int p = 0; p < kParts<Floats>; ++p) {
          Floats::template Store<false>(wide + p * Floats::kWidth, products[p]);
        }
        for (int64_t j = 0; j < n; ++j) out[i + j] = FromFloat<T>(wide[j]);
      }
    }
  });
}

// The contribution of a message to a sum: its levels, in registers, and its codes.
template <typename Floats>
struct Message {
  typename Floats::Vector zero;
  typename Floats::Vector one;
  const uint32_t* codes;

  Message(const int32_t* levels, const int32_t* codes)
      : zero(Floats::Broadcast(FloatOf(static_cast<uint32_t>(levels[0])))),
        one(Floats::Broadcast(FloatOf(static_cast<uint32_t>(levels[1])))),
        codes(reinterpret_cast<const uint32_t*>(codes)) {}

  void AddTo(typename Floats::Vector* sums, int64_t i, int64_t n) const {
    const uint32_t word = WordAt(codes, i, n);
    for (int p = 0; p < kParts<Floats>; ++p) {
      sums[p] = sums[p] + Floats::Select(Floats::Expand(word, p), one, zero);
    }
  }
};

template <typename Floats, int... kMessage>
void DecodeSumOf(std::integer_sequence<int, kMessage...>, const int32_t* levels,
                 const int32_t* codes, int64_t stride, int64_t count, bool stream, float* out) {
  const Message<Floats> messages[] = {
      {levels + kMessage * stride, codes + kMessage * stride}...};
  WriteRun<Floats>(count, stream, out, [&](int64_t i, int64_t n, auto* sums) {
    for (int p = 0; p < kParts<Floats>; ++p) sums[p] = Floats::Broadcast(0.0f);
    (messages[kMessage].AddTo(sums, i, n), ...);
  });
}

template <typename Floats>
void DecodeSum(const int32_t* levels, const int32_t* codes, int64_t stride, int64_t num_messages,
               int64_t count, bool stream, float* out) {
  const auto sum_of = [&](auto messages) {
    DecodeSumOf<Floats>(messages, levels, codes, stride, count, stream, out);
  };
  switch (num_messages) {
    case 2:
      return sum_of(std::make_integer_sequence<int, 2>());
    case 3:
      return sum_of(std::make_integer_sequence<int, 3>());
    case 4:
      return sum_of(std::make_integer_sequence<int, 4>());
  }
  WriteRun<Floats>(count, stream, out, [&](int64_t i, int64_t n, auto* sums) {
    for (int p = 0; p < kParts<Floats>; ++p) sums[p] = Floats::Broadcast(0.0f);
    for (int64_t k = 0; k < num_messages; ++k) {
      Message<Floats>(levels + k * stride, codes + k * stride).AddTo(sums, i, n);
    }
  });
}

template <typename Floats, typename T>
void Learn(const T* update, float* squares, int64_t count) {
  const auto kept = Floats::Broadcast(kKeptOfSquare);
  const auto learned = Floats::Broadcast(kLearnedOfSquare);
  int64_t i = 0;
  for (; i + Floats::kWidth <= count; i += Floats::kWidth) {
    const auto old = Floats::Load(squares + i);
    const auto square = LearnedSquare(old, Floats::Load(update + i), kept, learned);
    Floats::template Store<false>(squares + i, FiniteOr<Floats>(old, square));
  }
  for (; i < count; ++i) {
    const float value = ToFloat(update[i]);
    squares[i] = FiniteOr(
        squares[i], LearnedSquare(squares[i], value, kKeptOfSquare, kLearnedOfSquare));
  }
}

// `Simd` is Floats or Halves, whichever has lanes of T's size.
template <typename Floats, typename Simd, typename T>
constexpr ColumnsOf<T> MakeColumnsOf() {
  return {{Encode<Floats, T, float>, EncodeScaled<Floats, T, float>},
          {Encode<Floats, T, bfloat16>, EncodeScaled<Floats, T, bfloat16>},
          Decode<Simd, T>,
          DecodeScaled<Floats, T>,
          Learn<Floats, T>};
}

template <typename Floats, typename Halves>
constexpr OneBitColumns MakeOneBitColumns(const char* name) {
  return {name,
          MakeColumnsOf<Floats, Floats, float>(),
          MakeColumnsOf<Floats, Halves, float16>(),
          MakeColumnsOf<Floats, Halves, bfloat16>(),
          DecodeSum<Floats>,
          Floats::FinishStreaming};
}

}  // namespace
}  // namespace tf_onebit

#endif  // TF_ONEBIT_KERNELS_ONE_BIT_COLUMNS_LOOPS_H_
