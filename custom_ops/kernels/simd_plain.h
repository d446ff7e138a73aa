// Vectors for any processor: the compiler's own of 16 bytes (such as SSE2 and NEON). They always
// store through the caches. See simd_loops.h.

#ifndef TF_ONEBIT_KERNELS_SIMD_PLAIN_H_
#define TF_ONEBIT_KERNELS_SIMD_PLAIN_H_

#include <cstdint>
#include <cstring>

#include "lib/float16.h"
#include "lib/one_bit.h"

namespace tf_onebit {
namespace {

struct Floats {
  static constexpr int kWidth = 4;
  typedef float Vector __attribute__((vector_size(16)));
  typedef int32_t Mask __attribute__((vector_size(16)));  // -1 or 0 in each lane
  typedef uint32_t Words __attribute__((vector_size(16)));

  static Vector Broadcast(float value) { return Vector{value, value, value, value}; }

  static Vector Load(const float* values) {
    Vector vector;
    std::memcpy(&vector, values, sizeof(vector));
    return vector;
  }
  static Vector Load(const bfloat16* values) {
    HalfWords upper;
    std::memcpy(&upper, values, sizeof(upper));
    return (Vector)(__builtin_convertvector(upper, Words) << 16);
  }
  static Vector Load(const float16* values) {
    return Vector{ToFloat(values[0]), ToFloat(values[1]), ToFloat(values[2]), ToFloat(values[3])};
  }

  template <bool>
  static void Store(float* out, Vector vector) {
    std::memcpy(out, &vector, sizeof(vector));
  }

  static Words Steps(uint32_t first, uint32_t step) { return first + Words{0, 1, 2, 3} * step; }
  static Vector Dithered(Vector vector, Words words) {
    return (Vector)(((Words)vector + (words >> 16)) & Dither::kKept);
  }
  template <bool>
  static void Store(bfloat16* out, Vector vector) {
    const auto upper = __builtin_convertvector((Words)vector >> 16, HalfWords);
    std::memcpy(out, &upper, sizeof(upper));
  }

  static Mask GreaterEqual(Vector a, Vector b) { return a >= b; }
  static Mask Greater(Vector a, Vector b) { return a > b; }
  static Vector Abs(Vector vector) { return (Vector)((Mask)vector & INT32_MAX); }
  static Vector Sqrt(Vector vector) {
    for (int lane = 0; lane < kWidth; ++lane) vector[lane] = __builtin_sqrtf(vector[lane]);
    return vector;
  }
  static Vector Select(Mask mask, Vector one, Vector zero) { return mask ? one : zero; }
  static Vector AddWhere(Mask mask, Vector sum, Vector vector) {
    return sum + (Vector)(mask & (Mask)vector);
  }
  static Vector AddWhereNot(Mask mask, Vector sum, Vector vector) {
    return sum + (Vector)(~mask & (Mask)vector);
  }

  static uint32_t Pack(const Mask mask[8]) {
    Mask words{};
    for (int p = 0; p < 8; ++p) words |= mask[p] & Bits(p);
    return static_cast<uint32_t>(words[0] | words[1] | words[2] | words[3]);
  }
  static Mask Expand(uint32_t word, int part) {
    return (static_cast<int32_t>(word) & Bits(part)) != 0;
  }

  static void FinishStreaming() {}

 private:
  // The bits of a word for the lanes of a part.
  static Mask Bits(int part) { return (Mask)((Words{1, 2, 4, 8}) << (part * 4)); }
  typedef uint16_t HalfWords __attribute__((vector_size(8)));
};

struct Halves {
  static constexpr int kWidth = 8;
  typedef uint16_t Vector __attribute__((vector_size(16)));
  typedef int16_t Mask __attribute__((vector_size(16)));

  template <typename T>
  static Vector Broadcast(T value) {
    return Vector{} + value.bits;
  }
  static Mask Expand(uint32_t word, int part) {
    const Vector bits = {1, 2, 4, 8, 16, 32, 64, 128};
    const uint16_t shifted = static_cast<uint16_t>(word >> (part * 8));
    return (bits & shifted) != 0;
  }
  static Vector Select(Mask mask, Vector one, Vector zero) { return mask ? one : zero; }
  template <bool>
  static void Store(void* out, Vector vector) {
    std::memcpy(out, &vector, sizeof(vector));
  }
};

}  // namespace
}  // namespace tf_onebit

#endif  // TF_ONEBIT_KERNELS_SIMD_PLAIN_H_
