// One-bit encoding and decoding of a column: the CPU loops, chosen for the processor at run time.
//
// A column is a run of `count` values that share two reconstruction levels. The code of value i
// is bit i % 32 of word i / 32. The unused bits of the last word are zero. Every instruction set
// gives bitwise the same codes, levels, residuals and sums (lib/lanes.h defines the order).
//
// No pointer needs more alignment than its type, and no two arguments may overlap.

#ifndef TF_ONEBIT_KERNELS_ONE_BIT_COLUMNS_H_
#define TF_ONEBIT_KERNELS_ONE_BIT_COLUMNS_H_

#include <cstdint>
#include <type_traits>

#include "lib/float16.h"
#include "lib/one_bit.h"

namespace tf_onebit {

// Encodes one column:
//   corrected_i = gradient_i + residual_i
//   code_i      = corrected_i >= threshold        threshold and levels: see LevelRule
//   residual_i  = corrected_i - levels[code_i]        rounded to R, see Stored()
// Without a residual (nullptr) the corrected values are the gradients, and nothing is stored.
//
// Returns the sum of squares of the new residual (0 without one). If a corrected value or a sum
// of them is not finite, returns NaN, zeroes levels and codes, and keeps the residual.
template <typename T, typename R>
using EncodeColumn = double (*)(const T* gradient, R* residual, int64_t count, LevelRule rule,
                                float levels[2], uint32_t* codes);

// The same for gradient_i / scales_i in place of the gradient. `quotients` is scratch memory for
// `count` values, because a division takes longer than a load from the cache.
template <typename T, typename R>
using EncodeScaledColumn = double (*)(const T* gradient, const float* scales, float* quotients,
                                      R* residual, int64_t count, LevelRule rule,
                                      float levels[2], uint32_t* codes);

// Decodes one column: out_i = scale * sum_b levels_b[code_bi], rounded to T, over 1 or 2 rows.
//
// Row b has its two levels (bit patterns of floats) at `levels + b * stride` and its codes at
// `codes + b * stride`.
//
// `stream` stores past the caches, for outputs that would not fit into them. The caller then
// calls finish_streaming() on the same thread before another one reads the output.
template <typename T>
using DecodeColumn = void (*)(const int32_t* levels, const int32_t* codes, int64_t stride, int bits,
                              int64_t count, float scale, bool stream, T* out);

// The same, and then multiplies by the scales of values: out_i * scales_i, rounded to T once more.
// 16-bit values are always stored through the caches.
template <typename T>
using DecodeScaledColumn = void (*)(const int32_t* levels, const int32_t* codes, int64_t stride,
                                    int bits, int64_t count, float scale, const float* scales,
                                    bool stream, T* out);

// Sums one column of several messages, in their order: out_i = sum_k levels_k[code_ki].
//
// Messages are like rows of DecodeColumn, and any number of them. No messages sum to zero.
using DecodeSumColumn = void (*)(const int32_t* levels, const int32_t* codes, int64_t stride,
                                 int64_t num_messages, int64_t count, bool stream, float* out);

// Follows the squares of one column's updates; see LearnedSquare.
template <typename T>
using LearnColumn = void (*)(const T* update, float* squares, int64_t count);

// The loops that encode a column of type T, with residuals of type R.
template <typename T, typename R>
struct EncodeColumns {
  EncodeColumn<T, R> encode;
  EncodeScaledColumn<T, R> encode_scaled;
};

// The loops over a column of type T.
template <typename T>
struct ColumnsOf {
  EncodeColumns<T, float> with_f32;  // residuals
  EncodeColumns<T, bfloat16> with_bf16;
  DecodeColumn<T> decode;
  DecodeScaledColumn<T> decode_scaled;
  LearnColumn<T> learn;

  template <typename R>
  const EncodeColumns<T, R>& with() const {
    if constexpr (std::is_same_v<R, float>) {
      return with_f32;
    } else {
      return with_bf16;
    }
  }
};

struct OneBitColumns {
  const char* name;  // "avx512", "avx2" or "plain"

  ColumnsOf<float> f32;
  ColumnsOf<float16> f16;
  ColumnsOf<bfloat16> bf16;

  DecodeSumColumn decode_sum;

  void (*finish_streaming)();

  template <typename T>
  const ColumnsOf<T>& of() const {
    if constexpr (std::is_same_v<T, float>) {
      return f32;
    } else if constexpr (std::is_same_v<T, float16>) {
      return f16;
    } else {
      return bf16;
    }
  }
};

// The table to use; see simd.h.
const OneBitColumns& GetOneBitColumns();

// The tables that this processor runs, widest first, for tests; ends with nullptr.
const OneBitColumns* const* SupportedOneBitColumns();

}  // namespace tf_onebit

#endif  // TF_ONEBIT_KERNELS_ONE_BIT_COLUMNS_H_
