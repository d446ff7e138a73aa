// Tests of the transforms' kernels against scalar loops written from their definition.
//
// Every table that the processor supports is tested. Build them with -fsanitize=address,undefined
// as well: inputs are allocated at their exact size, so that a read past an end is caught.

#include "kernels/transform_blocks.h"

#include <cmath>
#include <limits>
#include <vector>

#include "lib/float16.h"
#include "testing.h"

namespace tf_onebit {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Values that may occur in gradients.
void Fill(Random& random, bool special, const Buffer<float>& gradient, const Buffer<float>& state,
          int64_t count) {
  const float values[] = {kNaN, kInfinity, -kInfinity, 3e38f, -1e30f, 1e-30f, 0.0f, -0.0f};
  for (int64_t i = 0; i < count; ++i) {
    gradient[i] = special && random.Bits() % 4 == 0 ? values[random.Bits() % 8] : random.Bell();
    state[i] = random.Bits() % 8 == 0 ? 0.0f : random.Uniform();
  }
}

float FiniteOr(float old, float value) {
  return std::isnan(value) || std::isinf(value) ? old : value;
}

bool Same(float a, float b) { return BitsOf(a) == BitsOf(b) || (std::isnan(a) && std::isnan(b)); }

void TestAccumulate(const TransformBlocks& blocks, const Buffer<float>& gradient,
                    const Buffer<float>& before, int64_t count, int offset) {
  for (const float share : {0.0f, 0.3f, 1.0f}) {
    Buffer<float> average(Buffer<float>::kOutput, count, offset);
    average.CopyFrom(before);
    const float sum = blocks.accumulate(gradient.data(), average.data(), count, share);
    CHECK(average.SentinelsIntact(), "wrote beside the average");
    float lanes[kWordBits] = {};
    for (int64_t i = 0; i < count; ++i) {
      const float square = gradient[i] * gradient[i];
      const float expected = FiniteOr(before[i], before[i] + share * (square - before[i]));
      CHECK(Same(average[i], expected), "average[%ld]=%.9g, expected %.9g", (long)i, average[i],
            expected);
      lanes[i % kWordBits] += std::sqrt(expected);
    }
    const float expected = SumOfLanes(lanes);
    CHECK(Same(sum, expected), "sum=%.9g, expected %.9g", sum, expected);
  }
}

void TestNormalize(const TransformBlocks& blocks, const Buffer<float>& gradient,
                   const Buffer<float>& average, int64_t count, int offset) {
  for (const double mean : {0.0, 0.5, 1e-30}) {
    const Normalizer normalizer = NormalizerOf(mean, 0.01f);
    Buffer<float> out(Buffer<float>::kOutput, count, offset), in_place(out.kOutput, count, offset);
    in_place.CopyFrom(gradient);
    blocks.normalize(gradient.data(), average.data(), count, normalizer, out.data());
    blocks.normalize(in_place.data(), average.data(), count, normalizer, in_place.data());
    CHECK(out.SentinelsIntact() && in_place.SentinelsIntact(), "wrote beside the result");
    for (int64_t i = 0; i < count; ++i) {
      const float relative = std::sqrt(average[i]) * normalizer.per_mean;
      const float expected =
          mean == 0 ? gradient[i] : gradient[i] / (relative > 0.01f ? relative : 0.01f);
      CHECK(Same(out[i], expected), "out[%ld]=%.9g, expected %.9g", (long)i, out[i], expected);
      CHECK(Same(in_place[i], expected), "in place: out[%ld]=%.9g, expected %.9g", (long)i,
            in_place[i], expected);
    }
  }
}

void TestMomentum(const TransformBlocks& blocks, const Buffer<float>& gradient,
                  const Buffer<float>& before, int64_t count, int offset) {
  for (const bool nesterov : {false, true}) {
    Buffer<float> velocity(Buffer<float>::kOutput, count, offset);
    Buffer<float> out(Buffer<float>::kOutput, count, (7 * offset + 5) % 16);
    velocity.CopyFrom(before);
    out.CopyFrom(gradient);
    blocks.momentum(out.data(), velocity.data(), count, {0.9f, nesterov}, -0.3f, out.data());
    CHECK(velocity.SentinelsIntact() && out.SentinelsIntact(), "wrote beside velocity or result");
    for (int64_t i = 0; i < count; ++i) {
      const float given = -0.3f * gradient[i], moved = 0.9f * before[i] + given;
      const float expected = nesterov ? 0.9f * moved + given : moved;
      CHECK(Same(velocity[i], FiniteOr(before[i], moved)), "velocity[%ld]=%.9g", (long)i,
            velocity[i]);
      CHECK(Same(out[i], expected), "out[%ld]=%.9g, expected %.9g", (long)i, out[i], expected);
    }
  }
}

void TestAdam(const TransformBlocks& blocks, const Buffer<float>& gradient,
              const Buffer<float>& before, float noise, int64_t count, int offset) {
  const AdamRule rule = MakeAdamRule(0.1f, 0.01f, 1e-3f);
  const float least = noise > 0 ? rule.least : 0.0f;
  Buffer<float> average(Buffer<float>::kOutput, count, offset);
  Buffer<float> square(Buffer<float>::kOutput, count, (5 * offset + 3) % 16);
  Buffer<float> out(Buffer<float>::kOutput, count, (7 * offset + 5) % 16);
  average.CopyFrom(before);
  square.CopyFrom(before);
  out.CopyFrom(gradient);
  blocks.adam(out.data(), average.data(), square.data(), count, rule, {-0.3f, noise, 1.5f},
              out.data());
  CHECK(average.SentinelsIntact() && square.SentinelsIntact() && out.SentinelsIntact(),
        "wrote beside averages or result");
  for (int64_t i = 0; i < count; ++i) {
    const float g = gradient[i], old = before[i];
    const float followed = old + 0.1f * (g - old), deviation = g - 1.5f * old;
    const float followed_square = old + 0.01f * (g * g - noise * (deviation * deviation) - old);
    const float bound = least * (followed * followed);
    const float kept = bound > followed_square ? bound : followed_square;
    const bool finite = std::isfinite(kept);
    const float expected = finite ? followed * -0.3f / (std::sqrt(kept) + 1e-3f) : kNaN;
    CHECK(Same(average[i], finite ? followed : old), "average[%ld]=%.9g", (long)i, average[i]);
    CHECK(Same(square[i], finite ? kept : old), "square[%ld]=%.9g", (long)i, square[i]);
    CHECK(Same(out[i], expected), "out[%ld]=%.9g, expected %.9g", (long)i, out[i], expected);
  }
}

void TestTable(const TransformBlocks& blocks) {
  std::vector<int64_t> counts;
  for (int64_t count = 0; count <= 100; ++count) counts.push_back(count);
  counts.insert(counts.end(), {kBlockSize - 1, kBlockSize});
  Random random(7);
  for (const int64_t count : counts) {
    for (const bool special : {false, true}) {
      const int offset = static_cast<int>(random.Bits() % 16);
      SetCase("%s, count=%ld, offset=%d, special=%d", blocks.name, (long)count, offset, special);
      Buffer<float> gradient(Buffer<float>::kInput, count, offset);
      Buffer<float> state(Buffer<float>::kInput, count, (3 * offset + 1) % 16);
      Fill(random, special, gradient, state, count);
      TestAccumulate(blocks, gradient, state, count, offset);
      TestNormalize(blocks, gradient, state, count, offset);
      TestMomentum(blocks, gradient, state, count, offset);
      for (const float noise : {0.0f, 0.5f}) {
        TestAdam(blocks, gradient, state, noise, count, offset);
      }
    }
  }
}

}  // namespace
}  // namespace tf_onebit

int main() {
  for (auto* blocks = tf_onebit::SupportedTransformBlocks(); *blocks != nullptr; ++blocks) {
    tf_onebit::TestTable(**blocks);
  }
  return tf_onebit::Outcome();
}
