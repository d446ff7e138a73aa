// Tests of the one-bit column kernels against float64 oracles written from their definition.
//
// Every table that the processor supports is tested. Build them with -fsanitize=address,undefined
// as well: inputs are allocated at their exact size, so that a read past an end is caught.

#include "kernels/one_bit_columns.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cfloat>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <limits>
#include <vector>

#include "testing.h"

namespace tf_onebit {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<int64_t> Counts() {
  std::vector<int64_t> counts;
  for (int64_t count = 0; count <= 130; ++count) counts.push_back(count);
  for (int64_t count : {255, 256, 257, 511, 512, 1000, 2047, 2048, 4096 + 7, (1 << 16) + 5}) {
    counts.push_back(count);
  }
  return counts;
}

const OneBitColumns& PlainColumns() {
  auto* columns = SupportedOneBitColumns();
  while (columns[1] != nullptr) ++columns;
  return **columns;
}

const std::vector<LevelRule> kBothRules = {LevelRule::kMean, LevelRule::kSymmetric};

const char* NameOf(LevelRule rule) { return rule == LevelRule::kMean ? "mean" : "symmetric"; }
template <typename T>
const char* TypeName();
template <>
const char* TypeName<float>() {
  return "float32";
}
template <>
const char* TypeName<float16>() {
  return "float16";
}
template <>
const char* TypeName<bfloat16>() {
  return "bfloat16";
}

// ---------------------------------------------------------------------------- 16-bit formats

// Returns the value of a 16-bit float, from the definition of its format.
double ValueOf(uint16_t bits, int fraction_bits) {
  const int exponent_bits = 15 - fraction_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = bits >> fraction_bits & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = bits >> 15 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return fraction ? double{kNaN} : sign * kInfinity;
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
}

template <typename T>
void TestConversions(int fraction_bits) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    SetCase("%s bits %04x", TypeName<T>(), bits);
    const T value{static_cast<uint16_t>(bits)};
    const double expected = ValueOf(value.bits, fraction_bits);
    const float converted = ToFloat(value);
    if (std::isnan(expected)) {
      CHECK(std::isnan(converted), "got %g", converted);
      CHECK(std::isnan(ToFloat(FromFloat<T>(converted))), "a NaN did not stay one");
      continue;
    }
    CHECK(converted == expected && std::signbit(converted) == std::signbit(expected),
          "expected %g, got %g", expected, converted);
    CHECK(FromFloat<T>(converted).bits == bits, "there and back: %04x",
          FromFloat<T>(converted).bits);
    if (std::isinf(expected)) continue;
    // Rounds between this value and the next one away from zero: to the nearest, and in the middle
    // to the even one. The largest value rounds as if the next one existed, to infinity.
    const uint16_t next = static_cast<uint16_t>(bits + 1);
    const double step = ValueOf((bits & 0x7FFF) == 0 ? 1 : bits, fraction_bits) -
                        ValueOf((bits & 0x7FFF) == 0 ? 0 : bits - 1, fraction_bits);
    const double next_value = ValueOf(next, fraction_bits);
    const double middle =
        expected + (std::isinf(next_value)          ? step
                    : (bits & 0x7FFF) == 0 && bits  ? next_value
                                                    : next_value - expected) / 2;
    const float middle_float = static_cast<float>(middle);
    if (middle_float != middle) continue;  // below the floats' own resolution
    const float below = std::nextafterf(middle_float, 0.0f);
    const float above = std::nextafterf(middle_float, std::signbit(middle_float) ? -kInfinity
                                                                                 : kInfinity);
    CHECK(FromFloat<T>(below).bits == bits, "below the middle: %04x", FromFloat<T>(below).bits);
    CHECK(FromFloat<T>(above).bits == next, "above the middle: %04x", FromFloat<T>(above).bits);
    CHECK(FromFloat<T>(middle_float).bits == (bits & 1 ? next : bits), "in the middle: %04x",
          FromFloat<T>(middle_float).bits);
  }
  SetCase("%s", TypeName<T>());
  CHECK(ToFloat(FromFloat<T>(FLT_MAX)) == kInfinity, "FLT_MAX did not overflow");
  CHECK(ToFloat(FromFloat<T>(-FLT_MAX)) == -kInfinity, "-FLT_MAX did not overflow");
  CHECK(std::isnan(ToFloat(FromFloat<T>(FloatOf(0x7F800001u)))), "NaN became infinite");
}

// ------------------------------------------------------------------------------------ encode

struct Encoded {
  double squares;
  float levels[2];
  Buffer<uint32_t> codes;
  Buffer<float> residual;
};

template <typename T>
Encoded RunEncode(const OneBitColumns& columns, const Buffer<T>& gradient,
                  const Buffer<float>& residual, bool error_feedback, int64_t count, int offset,
                  LevelRule rule) {
  Encoded encoded{0, {kNaN, kNaN},
                  {Buffer<uint32_t>::kOutput, NumWords(count), offset},
                  {Buffer<float>::kOutput, count, (5 * offset + 3) % 16}};
  encoded.residual.CopyFrom(residual);
  encoded.squares = columns.of<T>().with_f32.encode(
      gradient.data(), error_feedback ? encoded.residual.data() : nullptr, count, rule,
      encoded.levels, encoded.codes.data());
  return encoded;
}

bool CodeAt(const Buffer<uint32_t>& codes, int64_t i) { return codes[i / 32] >> (i % 32) & 1; }

// The largest relative error of a sum: 128 values per lane, 5 steps of the tree, and the quotient.
constexpr double kTolerance = (128 + 8) * 0x1p-24;

template <typename T>
void CheckEncoded(const Encoded& encoded, const Buffer<T>& gradient, const Buffer<float>& residual,
                  bool error_feedback, int64_t count, LevelRule rule) {
  std::vector<float> corrected(count);
  double total = 0, absolute_total = 0;
  for (int64_t i = 0; i < count; ++i) {
    corrected[i] = ToFloat(gradient[i]) + (error_feedback ? residual[i] : 0.0f);
    total += corrected[i];
    absolute_total += std::fabs(corrected[i]);
  }
  const double mean = count ? total / count : 0;
  const double slack = count ? kTolerance * absolute_total / count + 0x1p-149 : 0;

  double sums[2] = {0, 0}, counts[2] = {0, 0}, deviation = 0;
  for (int64_t i = 0; i < count; ++i) {
    const bool code = CodeAt(encoded.codes, i);
    if (rule == LevelRule::kMean) {
      CHECK(code == (corrected[i] >= 0), "i=%ld corrected=%g code=%d", (long)i, corrected[i], code);
    } else if (std::fabs(corrected[i] - mean) > slack) {
      CHECK(code == (corrected[i] > mean), "i=%ld corrected=%g code=%d mean=%g", (long)i,
            corrected[i], code, mean);
    }
    sums[code] += corrected[i];
    counts[code] += 1;
    deviation += std::fabs(corrected[i] - mean);
  }
  if (count % 32 != 0) {
    CHECK(encoded.codes[count / 32] >> (count % 32) == 0, "unused bits of the last word are set");
  }
  for (int code = 0; code < 2; ++code) {
    double expected, tolerance;
    if (rule == LevelRule::kMean) {
      expected = counts[code] ? sums[code] / counts[code] : 0;
      tolerance = kTolerance * std::fabs(expected) + 0x1p-149;
    } else {
      const double mean_deviation = count ? deviation / count : 0;
      expected = code ? mean + mean_deviation : mean - mean_deviation;
      tolerance = 3 * slack;
    }
    CHECK(std::fabs(encoded.levels[code] - expected) <= tolerance, "levels[%d]=%.9g expected=%.9g",
          code, encoded.levels[code], expected);
  }

  double squares = 0;
  for (int64_t i = 0; i < count && error_feedback; ++i) {
    const float sent = encoded.levels[CodeAt(encoded.codes, i)];
    CHECK(BitsOf(encoded.residual[i]) == BitsOf(corrected[i] - sent),
          "i=%ld corrected=%.9g sent=%.9g residual=%.9g", (long)i, corrected[i], sent,
          encoded.residual[i]);
    squares += double{encoded.residual[i]} * encoded.residual[i];
  }
  CHECK(std::fabs(encoded.squares - squares) <= kTolerance * squares + count * 0x1p-149,
        "squares=%.9g expected=%.9g", encoded.squares, squares);
  if (!error_feedback) CHECK(encoded.residual.SameBits(residual), "the residual changed");
  CHECK(encoded.codes.SentinelsIntact(), "wrote beside the codes");
  CHECK(encoded.residual.SentinelsIntact(), "wrote beside the residual");
}

void CheckSameBits(const Encoded& a, const Encoded& b) {
  CHECK(a.codes.SameBits(b.codes), "codes differ from plain");
  CHECK(std::memcmp(a.levels, b.levels, sizeof(a.levels)) == 0, "levels differ from plain");
  CHECK(a.residual.SameBits(b.residual), "residuals differ from plain");
  CHECK(std::memcmp(&a.squares, &b.squares, sizeof(a.squares)) == 0, "squares %.17g, plain %.17g",
        a.squares, b.squares);
}

enum Data { kBell, kPositive, kNegative, kSignedZeros, kTiny, kConstant, kWide, kNumData };

float Draw(Data data, Random& random) {
  switch (data) {
    case kPositive:
      return random.Uniform() + 0x1p-10f;
    case kNegative:
      return -random.Uniform() - 0x1p-10f;
    case kSignedZeros:
      return random.Bits() & 1 ? -0.0f : 0.0f;
    case kTiny:
      return random.Bell() * 0x1p-135f;  // denormal in float32 and in bfloat16
    case kConstant:
      return 0.1f;
    case kWide:
      return std::ldexp(random.Bell(), static_cast<int>(random.Bits() % 30) - 24);
    default:
      return random.Bell();
  }
}

template <typename T>
void TestEncode() {
  for (const int64_t count : Counts()) {
    const bool is_long = count > 10000;
    for (int offset = 0; offset < 16; offset += is_long ? 11 : 1) {
      for (int data = 0; data < kNumData; ++data) {
        if (is_long && data != kBell && data != kConstant) continue;
        // What values there are does not depend on where they are.
        if (data != kBell && offset % 5 != 0) continue;
        Random random(1000 * count + 100 * data + offset);
        Buffer<T> gradient(Buffer<T>::kInput, count, offset);
        Buffer<float> residual(Buffer<float>::kInput, count, 0);
        for (int64_t i = 0; i < count; ++i) {
          gradient[i] = FromFloat<T>(Draw(static_cast<Data>(data), random));
          residual[i] = 0.5f * Draw(static_cast<Data>(data), random);
        }
        for (const bool error_feedback : {true, false}) {
          for (const LevelRule rule : kBothRules) {
            const auto run = [&](const OneBitColumns& columns) {
              SetCase("encode %s %s count=%ld offset=%d data=%d %s error_feedback=%d",
                      columns.name, TypeName<T>(), (long)count, offset, data, NameOf(rule),
                      error_feedback);
              return RunEncode(columns, gradient, residual, error_feedback, count, offset, rule);
            };
            const Encoded plain = run(PlainColumns());
            CheckEncoded(plain, gradient, residual, error_feedback, count, rule);
            for (auto* columns = SupportedOneBitColumns(); *columns != nullptr; ++columns) {
              const Encoded encoded = run(**columns);
              CheckSameBits(encoded, plain);
              CHECK(encoded.codes.SentinelsIntact(), "wrote beside the codes");
              CHECK(encoded.residual.SentinelsIntact(), "wrote beside the residual");
            }
          }
        }
      }
    }
  }
}

// Errors of sums do not grow with the number of blocks.
void TestLongSums() {
  const int64_t count = 1 << 24;
  const float values[] = {-0.015f, -0.005f, 0.005f, 0.015f};
  Buffer<float> gradient(Buffer<float>::kInput, count, 0);
  Buffer<float> residual(Buffer<float>::kInput, count, 0);
  for (const float center : {0.0f, 0.1f}) {
    for (int64_t i = 0; i < count; ++i) {
      gradient[i] = center + values[i % 4];
      residual[i] = 0.0f;
    }
    for (const LevelRule rule : kBothRules) {
      const bool has_one_level = rule == LevelRule::kMean && center > 0;
      const double distance = has_one_level ? 0 : 0.01;
      const double levels[] = {has_one_level ? 0 : center - distance, center + distance};
      const double squares = count * (has_one_level ? 1.25e-4 : 2.5e-5);
      for (auto* columns = SupportedOneBitColumns(); *columns != nullptr; ++columns) {
        SetCase("%s %s long column around %g", (*columns)->name, NameOf(rule), center);
        const Encoded encoded = RunEncode(**columns, gradient, residual, true, count, 0, rule);
        for (int code = 0; code < 2; ++code) {
          const double error = encoded.levels[code] - levels[code];
          CHECK(std::fabs(error) <= kTolerance * std::fabs(levels[code]),
                "levels[%d]=%.9g expected=%.9g", code, encoded.levels[code], levels[code]);
        }
        CHECK(std::fabs(encoded.squares - squares) <= kTolerance * squares,
              "squares=%.9g expected=%.9g", encoded.squares, squares);
      }
    }
  }
}

template <typename T>
void CheckPoisoned(const Buffer<T>& gradient, const Buffer<float>& residual, int64_t count,
                   const char* what, const std::vector<LevelRule>& rules = kBothRules) {
  for (auto* columns = SupportedOneBitColumns(); *columns != nullptr; ++columns) {
    for (const LevelRule rule : rules) {
      SetCase("%s %s count=%ld %s %s", (*columns)->name, TypeName<T>(), (long)count, NameOf(rule),
              what);
      const Encoded encoded = RunEncode(**columns, gradient, residual, true, count, 1, rule);
      CHECK(std::isnan(encoded.squares), "returned %g", encoded.squares);
      CHECK(BitsOf(encoded.levels[0]) == 0 && BitsOf(encoded.levels[1]) == 0, "levels %g %g",
            encoded.levels[0], encoded.levels[1]);
      for (int64_t word = 0; word < NumWords(count); ++word) {
        CHECK(encoded.codes[word] == 0, "word %ld is %08x", (long)word, encoded.codes[word]);
      }
      CHECK(encoded.residual.SameBits(residual), "the residual changed");
      CHECK(encoded.codes.SentinelsIntact(), "wrote beside the codes");
    }
  }
}

template <typename T>
void TestNotFinite() {
  for (const int64_t count : {1, 2, 31, 32, 33, 100, 2048, 4096, 4096 + 7, 3 * 4096 + 40}) {
    Random random(count);
    Buffer<T> gradient(Buffer<T>::kInput, count, 3);
    Buffer<float> residual(Buffer<float>::kInput, count, 0);
    for (int64_t i = 0; i < count; ++i) {
      gradient[i] = FromFloat<T>(random.Bell());
      residual[i] = random.Bell();
    }
    char what[100];
    const int64_t tail = count / 32 * 32;
    for (const int64_t i : {int64_t{0}, count / 2, tail < count ? tail : count - 1, count - 1}) {
      for (const float bad : {kNaN, -kNaN, kInfinity, -kInfinity}) {
        const T good_gradient = gradient[i];
        gradient[i] = FromFloat<T>(bad);
        std::snprintf(what, sizeof(what), "gradient[%ld]=%g", (long)i, bad);
        CheckPoisoned(gradient, residual, count, what);
        gradient[i] = good_gradient;

        const float good_residual = residual[i];
        residual[i] = bad;
        std::snprintf(what, sizeof(what), "residual[%ld]=%g", (long)i, bad);
        CheckPoisoned(gradient, residual, count, what);
        residual[i] = good_residual;
      }
    }
    if (count > 1) {
      gradient[0] = FromFloat<T>(kInfinity);
      residual[count - 1] = -kInfinity;
      CheckPoisoned(gradient, residual, count, "infinities of both signs");
    }
  }
}

void TestOverflow() {
  Buffer<float> gradient(Buffer<float>::kInput, 100, 0);
  Buffer<float> residual(Buffer<float>::kInput, 100, 0);
  const auto fill = [&](float every_gradient, float every_residual) {
    for (int i = 0; i < 100; ++i) {
      gradient[i] = every_gradient;
      residual[i] = every_residual;
    }
  };
  fill(1, 1);
  gradient[40] = residual[40] = FLT_MAX;
  CheckPoisoned(gradient, residual, 100, "gradient + residual overflows");
  fill(FLT_MAX / 4, 0);
  CheckPoisoned(gradient, residual, 100, "sum overflows");
  fill(-FLT_MAX / 4, 0);
  CheckPoisoned(gradient, residual, 100, "negative sum overflows");
  for (int i = 0; i < 100; ++i) gradient[i] = i % 2 ? FLT_MAX / 80 : -FLT_MAX / 80;
  CheckPoisoned(gradient, residual, 100, "deviations overflow", {LevelRule::kSymmetric});

  // A huge value fits, even if the sum of its square does not.
  for (auto* columns = SupportedOneBitColumns(); *columns != nullptr; ++columns) {
    fill(0, 0);
    gradient[99] = FLT_MAX;
    gradient[98] = 1;
    SetCase("%s one huge value", (*columns)->name);
    const Encoded encoded =
        RunEncode(**columns, gradient, residual, true, 100, 0, LevelRule::kMean);
    CHECK(encoded.squares == kInfinity, "squares=%g", encoded.squares);
    CHECK(encoded.levels[1] == static_cast<float>(double{FLT_MAX} / 100), "level %g",
          encoded.levels[1]);
  }
}

// ------------------------------------------------------------------------------------ decode

struct DecodeCase {
  float levels[2];
  float scale;
};

const DecodeCase kDecodeCases[] = {{{-1.3f, 0.7f}, 1.0f},
                                   {{-0.0f, 0.0f}, 0.25f},
                                   {{1e-41f, -1e30f}, 1.0f / 3.0f},
                                   {{-70000.0f, 1e-7f}, 0.999f}};
constexpr int kNumDecodeCases = std::size(kDecodeCases);

template <typename T>
void TestDecode() {
  for (const int64_t count : Counts()) {
    const bool is_long = count > 10000;
    const int64_t stride = NumWords(count) + 7;  // two levels, the codes, and some other column
    Random random(count);
    Buffer<int32_t> rows(Buffer<int32_t>::kInput, kMaxBits * stride, 1);
    for (int64_t i = 0; i < kMaxBits * stride; ++i) rows[i] = static_cast<int32_t>(random.Bits());
    const auto code_at = [&](int row, int64_t i) {
      return static_cast<uint32_t>(rows[row * stride + 2 + i / 32]) >> (i % 32) & 1;
    };
    for (int offset = 0; offset < 32; offset += is_long ? 13 : 1) {
      for (int i = 0; i < kNumDecodeCases; ++i) {
        if (offset != 0 && offset % kNumDecodeCases != i) continue;
        const auto& [first, scale] = kDecodeCases[i];
        const float second[2] = {0.375f * first[1], -0.25f * first[0]};
        for (int code = 0; code < 2; ++code) {
          rows[code] = static_cast<int32_t>(BitsOf(first[code]));
          rows[stride + code] = static_cast<int32_t>(BitsOf(second[code]));
        }
        for (int bits = 1; bits <= kMaxBits; ++bits) {
          for (const bool stream : {false, true}) {
            for (auto* columns = SupportedOneBitColumns(); *columns != nullptr; ++columns) {
              SetCase("decode %s %s count=%ld offset=%d levels=%g,%g scale=%g bits=%d stream=%d",
                      (*columns)->name, TypeName<T>(), (long)count, offset, first[0], first[1],
                      scale, bits, stream);
              Buffer<T> out(Buffer<T>::kOutput, count, offset);
              (*columns)->of<T>().decode(rows.data(), rows.data() + 2, stride, bits, count, scale,
                                         stream, out.data());
              (*columns)->finish_streaming();
              for (int64_t i = 0; i < count; ++i) {
                float sum = first[code_at(0, i)];
                if (bits == 2) sum += second[code_at(1, i)];
                const T want = FromFloat<T>(scale * sum);
                CHECK(std::memcmp(&out[i], &want, sizeof(T)) == 0, "i=%ld: %g, expected %g",
                      (long)i, ToFloat(out[i]), ToFloat(want));
              }
              CHECK(out.SentinelsIntact(), "wrote beside the output");
            }
          }
        }
      }
    }
  }
}

void TestDecodeSum() {
  for (const int64_t count : Counts()) {
    const bool is_long = count > 10000;
    const int64_t stride = NumWords(count) + 7;  // two levels, the codes, and some other column
    for (int64_t num_messages = 0; num_messages <= 9; num_messages += is_long ? 3 : 1) {
      Random random(10 * count + num_messages);
      Buffer<int32_t> messages(Buffer<int32_t>::kInput, num_messages * stride, 1);
      for (int64_t i = 0; i < num_messages * stride; ++i) {
        messages[i] = static_cast<int32_t>(random.Bits());
      }
      const auto level_bits = [&](int64_t k, int code) -> int32_t& {
        return messages[k * stride + code];
      };
      for (int64_t k = 0; k < num_messages; ++k) {
        for (int code = 0; code < 2; ++code) {
          level_bits(k, code) =
              static_cast<int32_t>(BitsOf(std::ldexp(random.Bell(), random.Bits() % 20)));
        }
      }
      std::vector<float> expected(count);
      for (int64_t i = 0; i < count; ++i) {
        for (int64_t k = 0; k < num_messages; ++k) {
          const auto word = static_cast<uint32_t>(messages[k * stride + 2 + i / 32]);
          expected[i] += FloatOf(static_cast<uint32_t>(level_bits(k, word >> (i % 32) & 1)));
        }
      }
      for (int offset = 0; offset < 16; offset += is_long ? 13 : 1) {
        for (const bool stream : {false, true}) {
          for (auto* columns = SupportedOneBitColumns(); *columns != nullptr; ++columns) {
            SetCase("decode_sum %s count=%ld messages=%ld offset=%d stream=%d", (*columns)->name,
                    (long)count, (long)num_messages, offset, stream);
            Buffer<float> out(Buffer<float>::kOutput, count, offset);
            (*columns)->decode_sum(messages.data(), messages.data() + 2, stride, num_messages,
                                   count, stream, out.data());
            (*columns)->finish_streaming();
            for (int64_t i = 0; i < count; ++i) {
              CHECK(BitsOf(out[i]) == BitsOf(expected[i]), "i=%ld: %.9g, expected %.9g", (long)i,
                    out[i], expected[i]);
            }
            CHECK(out.SentinelsIntact(), "wrote beside the output");
          }
        }
      }
    }
  }
}

// ------------------------------------------------------------------------------------ scales

// A column with scales has the bits of a division before the encoding.
template <typename T>
void TestEncodeScaled() {
  for (const int64_t count : Counts()) {
    for (int offset = 0; offset < 16; offset += count > 200 ? 11 : 3) {
      Random random(100 * count + offset);
      Buffer<T> gradient(Buffer<T>::kInput, count, offset);
      Buffer<float> scales(Buffer<float>::kInput, count, (offset + 5) % 16);
      Buffer<float> quotients(Buffer<float>::kInput, count, offset);
      Buffer<float> residual(Buffer<float>::kInput, count, 0);
      for (int64_t i = 0; i < count; ++i) {
        gradient[i] = FromFloat<T>(random.Bell());
        residual[i] = random.Bell();
        scales[i] = 0.01f + 3 * random.Uniform();
        quotients[i] = ToFloat(gradient[i]) / scales[i];
      }
      for (const bool error_feedback : {true, false}) {
        for (const LevelRule rule : kBothRules) {
          const Encoded expected = RunEncode(PlainColumns(), quotients, residual, error_feedback,
                                             count, offset, rule);
          for (auto* columns = SupportedOneBitColumns(); *columns != nullptr; ++columns) {
            SetCase("encode_scaled %s %s count=%ld offset=%d %s error_feedback=%d",
                    (*columns)->name, TypeName<T>(), (long)count, offset, NameOf(rule),
                    error_feedback);
            Buffer<float> scratch(Buffer<float>::kOutput, count, 7);
            Encoded encoded{0, {kNaN, kNaN},
                            {Buffer<uint32_t>::kOutput, NumWords(count), offset},
                            {Buffer<float>::kOutput, count, 5}};
            encoded.residual.CopyFrom(residual);
            encoded.squares = (*columns)->of<T>().with_f32.encode_scaled(
                gradient.data(), scales.data(), scratch.data(),
                error_feedback ? encoded.residual.data() : nullptr, count, rule, encoded.levels,
                encoded.codes.data());
            CheckSameBits(encoded, expected);
            CHECK(encoded.codes.SentinelsIntact(), "wrote beside the codes");
            CHECK(encoded.residual.SentinelsIntact(), "wrote beside the residual");
            CHECK(scratch.SentinelsIntact(), "wrote beside the quotients");
          }
        }
      }
    }
  }
}

// A column with scales has the bits of a multiplication behind the decoding.
template <typename T>
void TestDecodeScaled() {
  for (const int64_t count : Counts()) {
    const int64_t stride = NumWords(count) + 7;
    Random random(count);
    Buffer<int32_t> rows(Buffer<int32_t>::kInput, kMaxBits * stride, 1);
    for (int64_t i = 0; i < kMaxBits * stride; ++i) rows[i] = static_cast<int32_t>(random.Bits());
    for (int row = 0; row < kMaxBits; ++row) {
      for (int code = 0; code < 2; ++code) {
        rows[row * stride + code] = static_cast<int32_t>(BitsOf(random.Bell()));
      }
    }
    Buffer<float> scales(Buffer<float>::kInput, count, 3);
    for (int64_t i = 0; i < count; ++i) scales[i] = 0.01f + 3 * random.Uniform();
    for (int bits = 1; bits <= kMaxBits; ++bits) {
      Buffer<T> expected(Buffer<T>::kOutput, count, 0);
      PlainColumns().of<T>().decode(rows.data(), rows.data() + 2, stride, bits, count, 0.3f, false,
                                    expected.data());
      for (int64_t i = 0; i < count; ++i) {
        expected[i] = FromFloat<T>(ToFloat(expected[i]) * scales[i]);
      }
      for (int offset = 0; offset < 32; offset += count > 200 ? 13 : 1) {
        for (const bool stream : {false, true}) {
          for (auto* columns = SupportedOneBitColumns(); *columns != nullptr; ++columns) {
            SetCase("decode_scaled %s %s count=%ld offset=%d bits=%d stream=%d", (*columns)->name,
                    TypeName<T>(), (long)count, offset, bits, stream);
            Buffer<T> out(Buffer<T>::kOutput, count, offset);
            (*columns)->of<T>().decode_scaled(rows.data(), rows.data() + 2, stride, bits, count,
                                              0.3f, scales.data(), stream, out.data());
            (*columns)->finish_streaming();
            CHECK(out.SameBits(expected), "other values than decoded and multiplied");
            CHECK(out.SentinelsIntact(), "wrote beside the output");
          }
        }
      }
    }
  }
}

template <typename T>
void TestLearn() {
  const float bad[] = {kNaN, kInfinity, -kInfinity, FLT_MAX};
  for (const int64_t count : Counts()) {
    Random random(count);
    Buffer<T> update(Buffer<T>::kInput, count, 1);
    Buffer<float> before(Buffer<float>::kInput, count, 0);
    Buffer<float> after(Buffer<float>::kOutput, count, 3);
    for (int64_t i = 0; i < count; ++i) {
      const float value = i % 7 == 3 ? bad[i % 4] : random.Bell();
      update[i] = FromFloat<T>(value);
      before[i] = random.Uniform();
      const float rounded = ToFloat(update[i]);
      after[i] = i % 7 == 3 ? before[i] : 0.95f * before[i] + 0.05f * (rounded * rounded);
    }
    for (auto* columns = SupportedOneBitColumns(); *columns != nullptr; ++columns) {
      SetCase("learn %s %s count=%ld", (*columns)->name, TypeName<T>(), (long)count);
      Buffer<float> squares(Buffer<float>::kOutput, count, 3);
      squares.CopyFrom(before);
      (*columns)->of<T>().learn(update.data(), squares.data(), count);
      CHECK(squares.SameBits(after), "wrong averages");
      CHECK(squares.SentinelsIntact(), "wrote beside the averages");
    }
  }
}

// ---------------------------------------------------------------------------------- dispatch

// The choice is made once per process, so each value has a process.
void CheckChoice(const char* requested, const char* expected) {
  SetCase("TF_ONEBIT_SIMD=%s", requested);
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    setenv("TF_ONEBIT_SIMD", requested, 1);
    _exit(std::strcmp(GetOneBitColumns().name, expected) == 0 ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(status == 0, "expected %s", expected);
}

void TestChoice() {
  const char* const widest = SupportedOneBitColumns()[0]->name;
  for (auto* columns = SupportedOneBitColumns(); *columns != nullptr; ++columns) {
    CheckChoice((*columns)->name, (*columns)->name);
  }
  CheckChoice("", widest);
  CheckChoice("no-such-instruction-set", widest);
}

}  // namespace
}  // namespace tf_onebit

int main() {
  using namespace tf_onebit;
  std::printf("instruction sets:");
  for (auto* columns = SupportedOneBitColumns(); *columns != nullptr; ++columns) {
    std::printf(" %s", (*columns)->name);
  }
  std::printf("\n");
  TestConversions<float16>(10);
  TestConversions<bfloat16>(7);
  TestEncode<float>();
  TestEncode<float16>();
  TestEncode<bfloat16>();
  TestLongSums();
  TestNotFinite<float>();
  TestNotFinite<float16>();
  TestNotFinite<bfloat16>();
  TestOverflow();
  TestDecode<float>();
  TestDecode<float16>();
  TestDecode<bfloat16>();
  TestDecodeSum();
  TestEncodeScaled<float>();
  TestDecodeScaled<float>();
  TestEncodeScaled<float16>();
  TestDecodeScaled<float16>();
  TestEncodeScaled<bfloat16>();
  TestDecodeScaled<bfloat16>();
  TestLearn<float>();
  TestLearn<float16>();
  TestLearn<bfloat16>();
  TestChoice();
  return Outcome();
}
