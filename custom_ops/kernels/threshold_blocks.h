// Threshold-sparse encoding and decoding of a block of values: the CPU loops, chosen for the
// processor at run time. Every instruction set gives the same bits.
//
// A block is at most kBlockSize values. No pointer needs more alignment than its type, and no two
// arguments may overlap.

#ifndef TF_ONEBIT_KERNELS_THRESHOLD_BLOCKS_H_
#define TF_ONEBIT_KERNELS_THRESHOLD_BLOCKS_H_

#include <cstdint>

#include "lib/float16.h"
#include "lib/lanes.h"

namespace tf_onebit {

struct EncodedBlock {
  int64_t num_codes;
  float sum_of_squares;  // of the new residual
  bool finite;           // whether all corrected values are
};

// What values are sent, and what becomes of the residual.
struct ThresholdRule {
  float threshold, magnitude, decay;
};

// Encodes one block:
//   corrected_i = gradient_i + decay * residual_i
//   residual_i  = corrected_i - magnitude, with the code of (first_index + i)      if > threshold
//                 corrected_i + magnitude, with that code and its negative bit     if < -threshold
//                 corrected_i, and no code                                         else
// A value that is not finite has no code, and its residual is kept. `codes` must have room for
// `count`.
template <typename T>
using EncodeThresholdBlock = EncodedBlock (*)(const T* gradient, float* residual, int64_t count,
                                              const ThresholdRule& rule, uint32_t first_index,
                                              uint32_t* codes);

// The codes of a message that are still to be read, and the value that each stands for.
struct CodeRun {
  const uint32_t* next;
  const uint32_t* end;
  float step;
};

// Sums one block of several messages, in their order:
//   out_i = scale * sum_k (+-step_k, or 0), added up in float32 and rounded to T
// The block has the codes of indices from `first_index` to before `first_index + count`. Each run
// is moved on to the first code behind these.
//
// `stream` stores past the caches, for outputs that would not fit into them. The caller then calls
// finish_streaming() on the same thread before another one reads the output.
template <typename T>
using DecodeThresholdBlock = void (*)(CodeRun* runs, int64_t num_runs, uint32_t first_index,
                                      int64_t count, float scale, bool stream, T* out);

struct ThresholdBlocks {
  const char* name;  // "avx512", "avx2" or "plain"

  EncodeThresholdBlock<float> encode_f32;
  EncodeThresholdBlock<float16> encode_f16;
  EncodeThresholdBlock<bfloat16> encode_bf16;

  DecodeThresholdBlock<float> decode_f32;
  DecodeThresholdBlock<float16> decode_f16;
  DecodeThresholdBlock<bfloat16> decode_bf16;

  void (*finish_streaming)();

  // The members above by gradient type, for templates: encode(gradient)(gradient, ...).
  EncodeThresholdBlock<float> encode(const float*) const { return encode_f32; }
  EncodeThresholdBlock<float16> encode(const float16*) const { return encode_f16; }
  EncodeThresholdBlock<bfloat16> encode(const bfloat16*) const { return encode_bf16; }
  DecodeThresholdBlock<float> decode(const float*) const { return decode_f32; }
  DecodeThresholdBlock<float16> decode(const float16*) const { return decode_f16; }
  DecodeThresholdBlock<bfloat16> decode(const bfloat16*) const { return decode_bf16; }
};

// The table to use; see simd.h.
const ThresholdBlocks& GetThresholdBlocks();

// The tables that this processor runs, widest first, for tests; ends with nullptr.
const ThresholdBlocks* const* SupportedThresholdBlocks();

}  // namespace tf_onebit

#endif  // TF_ONEBIT_KERNELS_THRESHOLD_BLOCKS_H_
