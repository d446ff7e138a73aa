// The loops of transform_blocks.h over the vectors of one instruction set.
//
// Each transform_blocks_<name>.cc makes its table from the vectors of simd_<name>.h.

#ifndef TF_ONEBIT_KERNELS_TRANSFORM_BLOCKS_LOOPS_H_
#define TF_ONEBIT_KERNELS_TRANSFORM_BLOCKS_LOOPS_H_

#include <cstdint>

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
void Momentum(const float* gradient, float* velocity, int64_t count, float momentum, bool nesterov,
              float* out) {
  const auto momenta = Floats::Broadcast(momentum);
  int64_t i = 0;
  for (; i + Floats::kWidth <= count; i += Floats::kWidth) {
    const auto old = Floats::Load(velocity + i), given = Floats::Load(gradient + i);
    const auto moved = FollowMomentum(old, given, momenta);
    Floats::template Store<false>(velocity + i, FiniteOr<Floats>(old, moved));
    Floats::template Store<false>(out + i,
                                  nesterov ? FollowMomentum(moved, given, momenta) : moved);
  }
  for (; i < count; ++i) {
    const float given = gradient[i], moved = FollowMomentum(velocity[i], given, momentum);
    velocity[i] = FiniteOr(velocity[i], moved);
    out[i] = nesterov ? FollowMomentum(moved, given, momentum) : moved;
  }
}

template <typename Floats>
constexpr TransformBlocks MakeTransformBlocks(const char* name) {
  return {name, Accumulate<Floats>, Normalize<Floats>, Momentum<Floats>};
}

}  // namespace
}  // namespace tf_onebit

#endif  // TF_ONEBIT_KERNELS_TRANSFORM_BLOCKS_LOOPS_H_
