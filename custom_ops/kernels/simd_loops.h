// Common parts of the loops over values, over the vectors of one instruction set.
//
// simd_<name>.h defines vectors of floats and vectors of 16-bit patterns. Everything is in anonymous
// namespaces, so that no code for a wide instruction set is linked into a narrower table.
//
// Vectors (`Floats`, `Halves`) have
//   kWidth, Vector, Mask           lanes in a vector; one truth value per lane
//   Broadcast(x)                   x in every lane
//   Expand(word, part)             mask of bits [part * kWidth, (part + 1) * kWidth) of a word
//   Select(mask, one, zero)
//   Store<kStream>(p, v)           kStream: past the caches; p is a multiple of the vector's size
// and Floats, whose vectors have the operators + - * /, also
//   Load(p)                        of float, float16, bfloat16
//   Pack(masks)                    the inverse of Expand
//   GreaterEqual(a, b), Greater(a, b), Abs(v), Sqrt(v)
//   AddWhere(mask, sum, v), AddWhereNot(mask, sum, v)      sum + v in the chosen lanes
//   Words                          a 32-bit integer for each lane, which has the operator +
//   Steps(first, step)             the words first, first + step and so on
//   Dithered(v, words)             Stored<bfloat16>() of each lane, whose word is not shifted yet
//   Store<kStream>(bfloat16*, v)   the upper halves of the lanes, through the caches
//   FinishStreaming()              makes values stored past the caches visible to other threads

#ifndef TF_ONEBIT_KERNELS_SIMD_LOOPS_H_
#define TF_ONEBIT_KERNELS_SIMD_LOOPS_H_

#include <cstdint>
#include <cstring>
#include <limits>

#include "lib/float16.h"
#include "lib/lanes.h"

namespace tf_onebit {
namespace {

template <typename Simd>
constexpr int kParts = kWordBits / Simd::kWidth;  // vectors that one word has bits for

// 32 sums, one for each bit of a word, kept in registers.
template <typename Floats>
struct LaneSums {
  typename Floats::Vector part[kParts<Floats>];

  LaneSums() {
    for (auto& vector : part) vector = Floats::Broadcast(0.0f);
  }

  void Store(float lanes[kWordBits]) const {
    for (int p = 0; p < kParts<Floats>; ++p) {
      Floats::template Store<false>(lanes + p * Floats::kWidth, part[p]);
    }
  }
};

// The lanes whose values are finite.
template <typename Floats>
typename Floats::Mask Finite(typename Floats::Vector value) {
  const auto infinities = Floats::Broadcast(std::numeric_limits<float>::infinity());
  return Floats::Greater(infinities, Floats::Abs(value));
}

// `value`, or `old` in lanes where it is not finite.
template <typename Floats>
typename Floats::Vector FiniteOr(typename Floats::Vector old, typename Floats::Vector value) {
  return Floats::Select(Finite<Floats>(value), value, old);
}

inline float FiniteOr(float old, float value) { return IsFinite(value) ? value : old; }

// The corrected values of a column. Each pass adds them up again: gradient and residual are in the
// cache by then, and a third array would only crowd it.
template <typename Floats, typename T, typename R, bool kHasResidual>
struct CorrectedValues {
  const T* gradient;
  const R* residual;

  typename Floats::Vector Vector(int64_t i) const {
    const auto value = Floats::Load(gradient + i);
    if constexpr (kHasResidual) return value + Floats::Load(residual + i);
    return value;
  }

  float Scalar(int64_t i) const {
    const float value = ToFloat(gradient[i]);
    if constexpr (kHasResidual) return value + ToFloat(residual[i]);
    return value;
  }
};

constexpr int64_t kCacheLineBytes = 64;

// Writes `count` values. `values_at(i, n, vectors)` computes 32 at a time, of which n count.
//
// Only whole cache lines are stored past the caches, because a line that is written in both ways
// costs more than either. So the values before the first whole line are written apart. Then the
// codes straddle words.
template <typename Simd, bool kStream, typename T, typename ValuesAt>
void WriteRun(int64_t count, T* out, ValuesAt values_at) {
  typename Simd::Vector vectors[kParts<Simd>];
  const auto write_some = [&](int64_t i, int64_t n) {
    values_at(i, n, vectors);
    T values[kWordBits];
    for (int p = 0; p < kParts<Simd>; ++p) {
      Simd::template Store<false>(values + p * Simd::kWidth, vectors[p]);
    }
    std::memcpy(out + i, values, n * sizeof(T));
  };
  int64_t i = 0;
  if constexpr (kStream) {
    const int64_t bytes_to_line = -reinterpret_cast<uintptr_t>(out) % kCacheLineBytes;
    i = bytes_to_line / static_cast<int64_t>(sizeof(T));
    if (i > count) i = count;
    __builtin_prefetch(out + count, 1);  // the line that may be shared with the next run
    if (i > 0) write_some(0, i);
  }
  for (; i + kWordBits <= count; i += kWordBits) {
    values_at(i, kWordBits, vectors);
    for (int p = 0; p < kParts<Simd>; ++p) {
      Simd::template Store<kStream>(out + i + p * Simd::kWidth, vectors[p]);
    }
  }
  if (i < count) write_some(i, count - i);
}

template <typename Simd, typename T, typename ValuesAt>
void WriteRun(int64_t count, bool stream, T* out, ValuesAt values_at) {
  if (stream) {
    WriteRun<Simd, true>(count, out, values_at);
  } else {
    WriteRun<Simd, false>(count, out, values_at);
  }
}

}  // namespace
}  // namespace tf_onebit

#endif  // TF_ONEBIT_KERNELS_SIMD_LOOPS_H_
