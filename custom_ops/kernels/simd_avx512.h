// Vectors of AVX-512. For files compiled with -mavx512f -mavx512bw -mavx512dq -mavx512vl -mf16c
// -mbmi2. See simd_loops.h.

#ifndef TF_ONEBIT_KERNELS_SIMD_AVX512_H_
#define TF_ONEBIT_KERNELS_SIMD_AVX512_H_

#ifndef __clang__  // GCC 12 warns about the deliberately undefined vectors in its own header
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include <cstdint>

#include "lib/float16.h"
#include "lib/one_bit.h"

namespace tf_onebit {
namespace {

template <bool kStream>
void StoreBits(void* out, __m512i bits) {
  if constexpr (kStream) {
    _mm512_stream_si512(static_cast<__m512i*>(out), bits);
  } else {
    _mm512_storeu_si512(out, bits);
  }
}

struct Floats {
  static constexpr int kWidth = 16;
  using Vector = __m512;
  using Mask = __mmask16;

  static Vector Broadcast(float value) { return _mm512_set1_ps(value); }

  static Vector Load(const float* values) { return _mm512_loadu_ps(values); }
  static Vector Load(const float16* values) { return _mm512_cvtph_ps(LoadHalves(values)); }
  static Vector Load(const bfloat16* values) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(LoadHalves(values)), 16));
  }

  template <bool kStream>
  static void Store(float* out, Vector vector) {
    StoreBits<kStream>(out, _mm512_castps_si512(vector));
  }

  struct Words {
    __m512i lanes;
    Words operator+(Words other) const { return {_mm512_add_epi32(lanes, other.lanes)}; }
  };
  static Words Steps(uint32_t first, uint32_t step) {
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i steps = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(static_cast<int32_t>(step)));
    return {_mm512_add_epi32(_mm512_set1_epi32(static_cast<int32_t>(first)), steps)};
  }
  static Vector Dithered(Vector vector, Words words) {
    const __m512i dither = _mm512_srli_epi32(words.lanes, 16);
    const __m512i bits = _mm512_add_epi32(_mm512_castps_si512(vector), dither);
    return _mm512_castsi512_ps(
        _mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int32_t>(Dither::kKept))));
  }
  template <bool>
  static void Store(bfloat16* out, Vector vector) {
    const __m512i upper = _mm512_srli_epi32(_mm512_castps_si512(vector), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_cvtepi32_epi16(upper));
  }

  static Mask GreaterEqual(Vector a, Vector b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
  static Mask Greater(Vector a, Vector b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
  static Vector Abs(Vector vector) { return _mm512_abs_ps(vector); }
  static Vector Sqrt(Vector vector) { return _mm512_sqrt_ps(vector); }
  static Vector Select(Mask mask, Vector one, Vector zero) {
    return _mm512_mask_blend_ps(mask, zero, one);
  }
  static Vector AddWhere(Mask mask, Vector sum, Vector vector) {
    return _mm512_mask_add_ps(sum, mask, sum, vector);
  }
  static Vector AddWhereNot(Mask mask, Vector sum, Vector vector) {
    return _mm512_mask_add_ps(sum, _knot_mask16(mask), sum, vector);
  }

  static uint32_t Pack(const Mask mask[2]) { return uint32_t{mask[1]} << 16 | mask[0]; }
  static Mask Expand(uint32_t word, int part) { return static_cast<Mask>(word >> (part * 16)); }

  static void FinishStreaming() { _mm_sfence(); }

 private:
  static __m256i LoadHalves(const void* values) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(values));
  }
};

struct Halves {
  static constexpr int kWidth = 32;
  using Vector = __m512i;
  using Mask = __mmask32;

  template <typename T>
  static Vector Broadcast(T value) {
    return _mm512_set1_epi16(static_cast<int16_t>(value.bits));
  }
  static Mask Expand(uint32_t word, int) { return word; }
  static Vector Select(Mask mask, Vector one, Vector zero) {
    return _mm512_mask_blend_epi16(mask, zero, one);
  }
  template <bool kStream>
  static void Store(void* out, Vector vector) {
    StoreBits<kStream>(out, vector);
  }
};

}  // namespace
}  // namespace tf_onebit

#endif  // TF_ONEBIT_KERNELS_SIMD_AVX512_H_
