// The loops of transform_blocks.h over the vectors of one instruction set.
//
// Each transform_blocks_<name>.cc makes its table from the vectors of simd_<name>.h.

#ifndef TF_ONEBIT_KERNELS_TRANSFORM_BLOCKS_LOOPS_H_
#define TF_ONEBIT_KERNELS_TRANSFORM_BLOCKS_LOOPS_H_

#include <cstdint>
#include <limits>

#include "kernels/simd_loops.h"
#include "kernels/transform_blocks.h"
#include "lib/lanes.h"
#include "lib/transforms.h"

namespace tf_onebit {
namespace {

template <typename Floats>
float Accumulate(const float* gradient, float* average, int64_t count, float share) {
  const auto shares = Floats::Broadcast(share);
  LaneSums<Floats> sums;
  int64_t i = 0;
  for (; i + kWordBits <= count; i += kWordBits) {
    for (int p = 0; p < kParts<Floats>; ++p) {
      const int64_t at = i + p * Floats::kWidth;
      const auto old = Floats::Load(average + at);
      const auto squares = FollowSquares(old, Floats::Load(gradient + at), shares);
      const auto kept = FiniteOr<Floats>(old, squares);
      Floats::template Store<false>(average + at, kept);
      sums.part[p] = sums.part[p] + Floats::Sqrt(kept);
    }
  }
  float lanes[kWordBits];
  sums.Store(lanes);
  for (int lane = 0; i + lane < count; ++lane) {
    float& kept = average[i + lane];
    kept = FiniteOr(kept, FollowSquares(kept, gradient[i + lane], share));
    lanes[lane] += __builtin_sqrtf(kept);
  }
  return SumOfLanes(lanes);
}

template <typename Floats>
void Normalize(const float* gradient, const float* average, int64_t count, Normalizer normalizer,
               float* out) {
  const auto per_mean = Floats::Broadcast(normalizer.per_mean);
  const auto floor = Floats::Broadcast(normalizer.floor);
  int64_t i = 0;
  for (; i + Floats::kWidth <= count; i += Floats::kWidth) {
    const auto relative = Floats::Sqrt(Floats::Load(average + i)) * per_mean;
    const auto divisor = Floats::Select(Floats::Greater(relative, floor), relative, floor);
    Floats::template Store<false>(out + i, Floats::Load(gradient + i) / divisor);
  }
  for (; i < count; ++i) {
    const float relative = __builtin_sqrtf(average[i]) * normalizer.per_mean;
    out[i] = gradient[i] / (relative > normalizer.floor ? relative : normalizer.floor);
  }
}

template <typename Floats>
void Momentum(const float* gradient, float* velocity, int64_t count, MomentumRule rule,
              float factor, float* out) {
  const auto momenta = Floats::Broadcast(rule.momentum), factors = Floats::Broadcast(factor);
  int64_t i = 0;
  for (; i + Floats::kWidth <= count; i += Floats::kWidth) {
    const auto old = Floats::Load(velocity + i), given = factors * Floats::Load(gradient + i);
    const auto moved = FollowMomentum(old, given, momenta);
    Floats::template Store<false>(velocity + i, FiniteOr<Floats>(old, moved));
    Floats::template Store<false>(out + i,
                                  rule.nesterov ? FollowMomentum(moved, given, momenta) : moved);
  }
  for (; i < count; ++i) {
    const float given = factor * gradient[i];
    const float moved = FollowMomentum(velocity[i], given, rule.momentum);
    velocity[i] = FiniteOr(velocity[i], moved);
    out[i] = rule.nesterov ? FollowMomentum(moved, given, rule.momentum) : moved;
  }
}

template <typename Floats>
void Adam(const float* gradient, float* average, float* square, int64_t count, AdamRule rule,
          AdamStep step, float* out) {
  const auto share = Floats::Broadcast(rule.share_of_gradient);
  const auto share_of_square = Floats::Broadcast(rule.share_of_square);
  const auto epsilon = Floats::Broadcast(rule.epsilon), factors = Floats::Broadcast(step.factor);
  const auto noise = Floats::Broadcast(step.noise), unbias = Floats::Broadcast(step.unbias);
  const float least_ratio = LeastOf(rule, step);
  const auto least = Floats::Broadcast(least_ratio);
  const auto nan = Floats::Broadcast(std::numeric_limits<float>::quiet_NaN());
  int64_t i = 0;
  for (; i + Floats::kWidth <= count; i += Floats::kWidth) {
    const auto given = Floats::Load(gradient + i);
    const auto old = Floats::Load(average + i), old_square = Floats::Load(square + i);
    const auto followed = FollowAverage(old, given, share);
    const auto square_now = SquareLessNoise(given, unbias * old, noise);
    const auto unbounded = FollowAverage(old_square, square_now, share_of_square);
    const auto bound = least * (followed * followed);
    const auto squares = Floats::Select(Floats::Greater(bound, unbounded), bound, unbounded);
    // The square is not finite whenever the gradient is not.
    const auto finite = Finite<Floats>(squares);
    const auto update = AdamUpdate(factors, followed, Floats::Sqrt(squares), epsilon);
    Floats::template Store<false>(average + i, Floats::Select(finite, followed, old));
    Floats::template Store<false>(square + i, Floats::Select(finite, squares, old_square));
    Floats::template Store<false>(out + i, Floats::Select(finite, update, nan));
  }
  for (; i < count; ++i) {
    const float given = gradient[i];
    const float followed = FollowAverage(average[i], given, rule.share_of_gradient);
    const float square_now = SquareLessNoise(given, step.unbias * average[i], step.noise);
    const float unbounded = FollowAverage(square[i], square_now, rule.share_of_square);
    const float bound = least_ratio * (followed * followed);
    const float squares = bound > unbounded ? bound : unbounded;
    const bool finite = IsFinite(squares);
    const float update = AdamUpdate(step.factor, followed, __builtin_sqrtf(squares), rule.epsilon);
    if (finite) average[i] = followed;
    if (finite) square[i] = squares;
    out[i] = finite ? update : std::numeric_limits<float>::quiet_NaN();
  }
}

template <typename Floats>
constexpr TransformBlocks MakeTransformBlocks(const char* name) {
  return {name, Accumulate<Floats>, Normalize<Floats>, Momentum<Floats>, Adam<Floats>};
}

}  // namespace
}  // namespace tf_onebit

#endif  // TF_ONEBIT_KERNELS_TRANSFORM_BLOCKS_LOOPS_H_
