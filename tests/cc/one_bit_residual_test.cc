// Tests of residuals in bfloat16: encoding must do what it does with a residual in float32, and then
// round that as lib/one_bit.h says. Every table that the processor supports is tested, with
// -fsanitize=address,undefined as well.

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/one_bit_columns.h"
#include "testing.h"

namespace tf_onebit {
namespace {

template <typename R>
struct Encoded {
  double squares = 0;
  float levels[2] = {1, 1};
  Buffer<uint32_t> codes;
  Buffer<R> residual;

  Encoded(const Buffer<R>& before, int64_t count, int offset)
      : codes(Buffer<uint32_t>::kOutput, NumWords(count), offset),
        residual(Buffer<R>::kOutput, count, (5 * offset + 3) % 16) {
    residual.CopyFrom(before);
  }
};

template <typename T, typename R>
Encoded<R> Run(const OneBitColumns& columns, const Buffer<T>& gradient, const float* scales,
               const Buffer<R>& residual, int64_t count, int offset, LevelRule rule) {
  Encoded<R> encoded(residual, count, offset);
  const EncodeColumns<T, R>& loops = columns.of<T>().template with<R>();
  if (scales == nullptr) {
    encoded.squares = loops.encode(gradient.data(), encoded.residual.data(), count, rule,
                                   encoded.levels, encoded.codes.data());
  } else {
    std::vector<float> quotients(count);
    encoded.squares =
        loops.encode_scaled(gradient.data(), scales, quotients.data(), encoded.residual.data(),
                            count, rule, encoded.levels, encoded.codes.data());
  }
  CHECK(encoded.codes.SentinelsIntact() && encoded.residual.SentinelsIntact(), "wrote beside");
  return encoded;
}

// Rounds by the definition: up if the distance to the lower neighbor, in units of the distance
// between both neighbors, and a number that steps through [0, 1) are together at least 1.
uint16_t Rounded(float value, const float levels[2], int64_t i) {
  const uint32_t start = BitsOf(levels[0]) * 0x85EBCA6Bu ^ BitsOf(levels[1]) * 0xC2B2AE35u;
  const uint32_t step = start + static_cast<uint32_t>(i) * 0x9E3779B9u;
  const double distance = (BitsOf(value) & 0xFFFF) / 65536.0;
  const double number = std::floor(step / 65536.0) / 65536.0;
  return static_cast<uint16_t>((BitsOf(value) >> 16) + (distance + number >= 1 ? 1 : 0));
}

template <typename T>
void TestAgainstFloat32(const char* type) {
  for (const int64_t count : {0, 1, 5, 31, 32, 33, 64, 100, 511, 512, 4096, 4096 + 45}) {
    for (int offset = 0; offset < 16; offset += 3) {
      Random random(100 * count + offset);
      Buffer<T> gradient(Buffer<T>::kInput, count, offset);
      Buffer<bfloat16> residual(Buffer<bfloat16>::kInput, count, 0);
      Buffer<float> wide(Buffer<float>::kInput, count, 0);
      std::vector<float> scales(count);
      for (int64_t i = 0; i < count; ++i) {
        gradient[i] = FromFloat<T>(random.Bell());
        residual[i] = FromFloat<bfloat16>(random.Bell());
        wide[i] = ToFloat(residual[i]);
        scales[i] = 0.01f + 3 * random.Uniform();
      }
      for (const LevelRule rule : {LevelRule::kMean, LevelRule::kSymmetric}) {
        for (const float* of_values : {static_cast<const float*>(nullptr),
                                       static_cast<const float*>(scales.data())}) {
          for (auto* columns = SupportedOneBitColumns(); *columns != nullptr; ++columns) {
            SetCase("%s %s count=%ld offset=%d rule=%d scales=%d", (*columns)->name, type,
                    (long)count, offset, static_cast<int>(rule), of_values != nullptr);
            const auto expected = Run(**columns, gradient, of_values, wide, count, offset, rule);
            const auto encoded =
                Run(**columns, gradient, of_values, residual, count, offset, rule);
            CHECK(encoded.codes.SameBits(expected.codes), "other codes");
            CHECK(std::memcmp(encoded.levels, expected.levels, sizeof(encoded.levels)) == 0,
                  "other levels");
            double squares = 0;
            for (int64_t i = 0; i < count; ++i) {
              const uint16_t bits = Rounded(expected.residual[i], encoded.levels, i);
              CHECK(encoded.residual[i].bits == bits, "i=%ld of %.9g: %04x, expected %04x",
                    (long)i, expected.residual[i], encoded.residual[i].bits, bits);
              squares += double{ToFloat(encoded.residual[i])} * ToFloat(encoded.residual[i]);
            }
            CHECK(std::fabs(encoded.squares - squares) <= 1e-5 * squares, "squares=%.9g, not %.9g",
                  encoded.squares, squares);
          }
        }
      }
    }
  }
}

// A small gradient is not lost in a large residual: over many steps, what has been sent and what is
// left add up to what was given. Rounding to the nearest would lose a third of these gradients, which
// are the same in every step.
void TestSmallGradients() {
  const int64_t count = 512, steps = 2000;
  Buffer<float> gradient(Buffer<float>::kInput, count, 0);
  Buffer<bfloat16> residual(Buffer<bfloat16>::kInput, count, 0);
  std::vector<double> sent(count);
  for (int64_t i = 0; i < count; ++i) residual[i] = FromFloat<bfloat16>(0);
  for (int64_t step = 0; step < steps; ++step) {
    for (int64_t i = 0; i < count; ++i) {
      gradient[i] = i % 2 != 0 ? 1e-3f : i % 4 == 0 ? 1.0f : -1.0f;
    }
    const auto encoded =
        Run(GetOneBitColumns(), gradient, nullptr, residual, count, 0, LevelRule::kMean);
    for (int64_t i = 0; i < count; ++i) {
      sent[i] += encoded.levels[encoded.codes[i / 32] >> (i % 32) & 1];
      residual[i] = encoded.residual[i];
    }
  }
  double error = 0;
  for (int64_t i = 1; i < count; i += 2) {
    error += (sent[i] + ToFloat(residual[i]) - steps * 1e-3) / (count / 2);
  }
  SetCase("small gradients");
  CHECK(std::fabs(error) < 0.01 * steps * 1e-3, "%.3g of %.3g were lost", -error, steps * 1e-3);
}

void TestNotFinite() {
  Buffer<float> gradient(Buffer<float>::kInput, 40, 0);
  Buffer<bfloat16> residual(Buffer<bfloat16>::kInput, 40, 0);
  for (int64_t i = 0; i < 40; ++i) {
    gradient[i] = i == 35 ? INFINITY : 1.0f;
    residual[i] = FromFloat<bfloat16>(0.5f);
  }
  for (auto* columns = SupportedOneBitColumns(); *columns != nullptr; ++columns) {
    SetCase("%s, not finite", (*columns)->name);
    const auto encoded = Run(**columns, gradient, nullptr, residual, 40, 0, LevelRule::kMean);
    CHECK(std::isnan(encoded.squares) && encoded.levels[0] == 0 && encoded.levels[1] == 0, "sent");
    CHECK(encoded.residual.SameBits(residual), "the residual changed");
  }
}

}  // namespace
}  // namespace tf_onebit

int main() {
  tf_onebit::TestAgainstFloat32<float>("float32");
  tf_onebit::TestAgainstFloat32<tf_onebit::float16>("float16");
  tf_onebit::TestAgainstFloat32<tf_onebit::bfloat16>("bfloat16");
  tf_onebit::TestSmallGradients();
  tf_onebit::TestNotFinite();
  return tf_onebit::Outcome();
}
