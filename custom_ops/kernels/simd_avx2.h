// Vectors of AVX2. For files compiled with -mavx2 -mf16c -mfma. See simd_loops.h.

#ifndef TF_ONEBIT_KERNELS_SIMD_AVX2_H_
#define TF_ONEBIT_KERNELS_SIMD_AVX2_H_

#include <immintrin.h>

#include <cstdint>

#include "lib/float16.h"
#include "lib/one_bit.h"

namespace tf_onebit {
namespace {

template <bool kStream>
void StoreBits(void* out, __m256i bits) {
  if constexpr (kStream) {
    _mm256_stream_si256(static_cast<__m256i*>(out), bits);
  } else {
    _mm256_storeu_si256(static_cast<__m256i*>(out), bits);
  }
}

struct Floats {
  static constexpr int kWidth = 8;
  using Vector = __m256;
  using Mask = __m256;  // the sign of each lane; a comparison's lanes are all ones or all zeros

  static Vector Broadcast(float value) { return _mm256_set1_ps(value); }

  static Vector Load(const float* values) { return _mm256_loadu_ps(values); }
  static Vector Load(const float16* values) { return _mm256_cvtph_ps(LoadHalves(values)); }
  static Vector Load(const bfloat16* values) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(LoadHalves(values)), 16));
  }

  template <bool kStream>
  static void Store(float* out, Vector vector) {
    StoreBits<kStream>(out, _mm256_castps_si256(vector));
  }

  struct Words {
    __m256i lanes;
    Words operator+(Words other) const { return {_mm256_add_epi32(lanes, other.lanes)}; }
  };
  static Words Steps(uint32_t first, uint32_t step) {
    const __m256i steps = _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
                                             _mm256_set1_epi32(static_cast<int32_t>(step)));
    return {_mm256_add_epi32(_mm256_set1_epi32(static_cast<int32_t>(first)), steps)};
  }
  static Vector Dithered(Vector vector, Words words) {
    const __m256i dither = _mm256_srli_epi32(words.lanes, 16);
    const __m256i bits = _mm256_add_epi32(_mm256_castps_si256(vector), dither);
    return _mm256_castsi256_ps(
        _mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int32_t>(Dither::kKept))));
  }
  template <bool>
  static void Store(bfloat16* out, Vector vector) {
    const __m256i upper = _mm256_srli_epi32(_mm256_castps_si256(vector), 16);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out),
                     _mm_packus_epi32(_mm256_castsi256_si128(upper),
                                      _mm256_extracti128_si256(upper, 1)));
  }

  static Mask GreaterEqual(Vector a, Vector b) { return _mm256_cmp_ps(a, b, _CMP_GE_OQ); }
  static Mask Greater(Vector a, Vector b) { return _mm256_cmp_ps(a, b, _CMP_GT_OQ); }
  static Vector Abs(Vector vector) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), vector); }
  static Vector Sqrt(Vector vector) { return _mm256_sqrt_ps(vector); }
  static Vector Select(Mask mask, Vector one, Vector zero) {
    return _mm256_blendv_ps(zero, one, mask);
  }
  static Vector AddWhere(Mask mask, Vector sum, Vector vector) {
    return sum + _mm256_and_ps(mask, vector);
  }
  static Vector AddWhereNot(Mask mask, Vector sum, Vector vector) {
    return sum + _mm256_andnot_ps(mask, vector);
  }

  static uint32_t Pack(const Mask mask[4]) {
    uint32_t word = 0;
    for (int p = 0; p < 4; ++p) {
      word |= static_cast<uint32_t>(_mm256_movemask_ps(mask[p])) << (p * 8);
    }
    return word;
  }
  static Mask Expand(uint32_t word, int part) {
    const __m256i lanes = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
    const __m256i to_sign = _mm256_sub_epi32(lanes, _mm256_set1_epi32(part * 8));
    const __m256i words = _mm256_set1_epi32(static_cast<int32_t>(word));
    return _mm256_castsi256_ps(_mm256_sllv_epi32(words, to_sign));
  }

  static void FinishStreaming() { _mm_sfence(); }

 private:
  static __m128i LoadHalves(const void* values) {
    return _mm_loadu_si128(static_cast<const __m128i*>(values));
  }
};

struct Halves {
  static constexpr int kWidth = 16;
  using Vector = __m256i;
  using Mask = __m256i;

  template <typename T>
  static Vector Broadcast(T value) {
    return _mm256_set1_epi16(static_cast<int16_t>(value.bits));
  }
  static Mask Expand(uint32_t word, int part) {
    const __m256i bit = _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096,
                                          8192, 16384, -32768);
    const __m256i words = _mm256_set1_epi16(static_cast<int16_t>(word >> (part * 16)));
    return _mm256_cmpeq_epi16(_mm256_and_si256(words, bit), bit);
  }
  static Vector Select(Mask mask, Vector one, Vector zero) {
    return _mm256_blendv_epi8(zero, one, mask);
  }
  template <bool kStream>
  static void Store(void* out, Vector vector) {
    StoreBits<kStream>(out, vector);
  }
};

}  // namespace
}  // namespace tf_onebit

#endif  // TF_ONEBIT_KERNELS_SIMD_AVX2_H_
