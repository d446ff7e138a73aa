// The decoding of one-bit messages on a GPU. Time goes to memory: the values are written once, or
// added to variables.

#include "kernels/one_bit_gpu.h"

#include <type_traits>

#include "kernels/gpu.h"
#include "kernels/one_bit_common_gpu.h"

namespace tf_onebit {
namespace gpu {
namespace {

// Adds up the plain values of all messages, in the order of ranks.
__global__ __launch_bounds__(kThreads) void SumPlain(const __grid_constant__ LayoutView layout,
                                                     const int32_t* messages, float* plain) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= layout.plain_size) return;
  const float* const values = reinterpret_cast<const float*>(messages + layout.plain_at + i);
  float sum = 0;
  for (int64_t k = 0; k < layout.num_shards; ++k) sum += values[k * layout.worker_message_words()];
  plain[i] = sum;
}

// A thread decodes four values at a time, and a warp 512 in a row: a span. Vector v of a thread begins
// at value ValueOf(v) of the span, and has its codes in word WordOf(v).
constexpr int kDecodeVectors = 4;
constexpr int kDecodeSpan = kDecodeVectors * 4 * kWarpSize;

__device__ int ValueOf(int v) { return (v * kWarpSize + LaneOfThread()) * 4; }
__device__ int WordOf(int v) { return v * 4 + LaneOfThread() / (kWordBits / 4); }

// Calls work(which values exist, whether vectors are aligned) for a span of which `left` values are
// left. Nearly all are whole and aligned, and their code has no branches.
template <typename T, typename Work>
__device__ void WithSpan(const T* values, int64_t left, const Work& work) {
  const bool aligned = IsAligned(values);
  if (left >= kDecodeSpan && aligned) {
    work(AllValues<kDecodeSpan>{}, std::true_type{});
  } else {
    work(FirstValues{static_cast<int>(left < kDecodeSpan ? left : kDecodeSpan)}, aligned);
  }
}

// Selects this thread's four values by their codes in a word. The codes are turned to bits 1 to 4,
// because nvcc moves these into predicates at once, and bit 0 by itself.
template <typename T>
__device__ void Select(uint32_t word, T zero, T one, T (&values)[4]) {
  const uint32_t turn = (LaneOfThread() * 4 + kWordBits - 1) % kWordBits;
  const uint32_t codes = __funnelshift_r(word, word, turn);
#pragma unroll
  for (int j = 0; j < 4; ++j) values[j] = codes & (2u << j) ? one : zero;
}

// Columns of a warp, and the blocks of threads on a multiprocessor for which nvcc saves registers.
// These were the fastest on an H200.
constexpr int kDecodeSumRounds = 2, kDecodeSumBlocks = 4;

__global__ __launch_bounds__(kThreads, kDecodeSumBlocks) void DecodeSumColumns(
    const __grid_constant__ LayoutView layout, int64_t rank, const int32_t* messages,
    float* aggregate) {
  using Staged = StagedMessages<kDecodeSpan / kWordBits>;
  __shared__ Staged staging[kWarps];
  Staged& staged = staging[WarpOfThread()];
  const ShardStart first = layout.shards[rank];
  const int64_t stride = layout.worker_message_words();
  const int num_messages = static_cast<int>(layout.num_shards);
  const auto read = [&](const Place& place, int message, int64_t value) {
    const int32_t* const from = messages + message * stride;
    return Staged::Read(from + place.levels,
                        reinterpret_cast<const uint32_t*>(from + place.codes) + value / kWordBits,
                        stride, num_messages - message, place.column.count - value);
  };
  const auto work = [&](const Place& place, Staged::OfThread mine) {
    for (int64_t begin = 0; begin < place.column.count; begin += kDecodeSpan) {
      float sums[kDecodeVectors][4] = {};
      for (int k = 0; k < num_messages; k += Staged::kMessages) {
        if (begin != 0 || k != 0) mine = read(place, k, begin);
        staged.Put(mine);
        const int left = Staged::OfChunk(num_messages - k);
#pragma unroll 4
        for (int i = 0; i < left; ++i) {
          const float zero = staged.levels[i][0], one = staged.levels[i][1];
#pragma unroll
          for (int v = 0; v < kDecodeVectors; ++v) {
            float decoded[4];
            Select((&staged.words[i][0].x)[WordOf(v)], zero, one, decoded);
#pragma unroll
            for (int j = 0; j < 4; ++j) sums[v][j] += decoded[j];
          }
        }
      }
      float* const out = aggregate + (place.column.value - first.value + begin);
      WithSpan(out, place.column.count - begin, [&](const auto& existing, const auto& aligned) {
#pragma unroll
        for (int v = 0; v < kDecodeVectors; ++v) {
          const int at = ValueOf(v);
          if (existing.Has(at)) Store4(sums[v], existing.OfFour(at), aligned, out + at);
        }
      });
    }
  };
  ForPlaces<kDecodeSumRounds>(layout, first.column, layout.shards[rank + 1].column,
                              [&](const Place& place) { return read(place, 0, 0); }, work);
}

// Selects between four values as above.
template <typename T>
__device__ void Select(uint32_t word, const T (&zero)[4], const T (&one)[4], T (&values)[4]) {
  bool codes[4];
  Select(word, false, true, codes);
#pragma unroll
  for (int j = 0; j < 4; ++j) values[j] = codes[j] ? one[j] : zero[j];
}

// What a thread reads of the rows of a message to decode a span.
template <int kBits>
struct Encoded {
  uint32_t words[kBits][kDecodeVectors];
  float levels[kBits][2];
};

// Decodes this thread's four values of vector v.
template <typename T>
__device__ void DecodeFour(const Encoded<1>& encoded, int v, float scale, T (&values)[4]) {
  const auto& levels = encoded.levels[0];
  Select(encoded.words[0][v], FromFloat<T>(scale * levels[0]), FromFloat<T>(scale * levels[1]),
         values);
}

template <typename T>
__device__ void DecodeFour(const Encoded<2>& encoded, int v, float scale, T (&values)[4]) {
  T of_second[2][4];
#pragma unroll
  for (int code = 0; code < 2; ++code) {
    const float second = encoded.levels[1][code];
    Select(encoded.words[0][v], FromFloat<T>(scale * (encoded.levels[0][0] + second)),
           FromFloat<T>(scale * (encoded.levels[0][1] + second)), of_second[code]);
  }
  Select(encoded.words[1][v], of_second[0], of_second[1], values);
}

constexpr int kDecodeRounds = 2;  // as above
// With more blocks nvcc spills registers for two bits, and for the scales of a span.
constexpr int DecodeBlocks(int bits, bool scaled) {
  if (scaled) return bits == 1 ? 4 : 3;
  return bits == 1 ? 6 : 4;
}

template <typename T, int kBits, bool kScaled, bool kAdds>
__global__ __launch_bounds__(kThreads, DecodeBlocks(kBits, kScaled || kAdds)) void DecodeColumns(
    const __grid_constant__ TensorPointers<T*> tensors, const __grid_constant__ LayoutView layout,
    int first_tensor, const int32_t* messages, float scale, const float* value_scales,
    const float* factor, int64_t first, int64_t end) {
  const float times = kAdds ? *factor : 1.0f;
  const auto row_of = [&](const Place& place, int bit) {
    return messages + (place.shard * kBits + bit) * layout.shard_message_words();
  };
  const auto read_codes = [&](const Place& place, int64_t begin, Encoded<kBits>* encoded) {
#pragma unroll
    for (int bit = 0; bit < kBits; ++bit) {
      const int32_t* const codes = row_of(place, bit) + place.codes + begin / kWordBits;
#pragma unroll
      for (int v = 0; v < kDecodeVectors; ++v) {
        const bool exists = begin + ValueOf(v) < place.column.count;
        encoded->words[bit][v] = exists ? codes[WordOf(v)] : 0;
      }
    }
  };
  const auto read = [&](const Place& place) {
    Encoded<kBits> encoded;
    read_codes(place, 0, &encoded);
#pragma unroll
    for (int bit = 0; bit < kBits; ++bit) {
      const int32_t* const levels = row_of(place, bit) + place.levels;
      encoded.levels[bit][0] = FloatOf(static_cast<uint32_t>(levels[0]));
      encoded.levels[bit][1] = FloatOf(static_cast<uint32_t>(levels[1]));
    }
    return encoded;
  };
  const auto work = [&](const Place& place, Encoded<kBits> encoded) {
    T* const values = tensors.at[place.column.tensor - first_tensor] + place.column.offset;
    for (int64_t begin = 0; begin < place.column.count; begin += kDecodeSpan) {
      if (begin != 0) read_codes(place, begin, &encoded);
      T* const out = values + begin;
      WithSpan(out, place.column.count - begin, [&](const auto& existing, const auto& aligned) {
        [[maybe_unused]] float factors[kDecodeVectors][4];
        if constexpr (kScaled) {
          const float* const scales = value_scales + place.column.value + begin;
          const bool scales_aligned = IsAligned(scales);
#pragma unroll
          for (int v = 0; v < kDecodeVectors; ++v) {
            const int at = ValueOf(v);
            Load4(scales + at, existing.OfFour(at), scales_aligned, factors[v]);
          }
        }
#pragma unroll
        for (int v = 0; v < kDecodeVectors; ++v) {
          const int at = ValueOf(v);
          T decoded[4];
          DecodeFour(encoded, v, scale, decoded);
          if constexpr (kScaled) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              decoded[j] = FromFloat<T>(ToFloat(decoded[j]) * factors[v][j]);
            }
          }
          if constexpr (kAdds) {
            float old[4];
            Load4(out + at, existing.OfFour(at), aligned, old);
#pragma unroll
            for (int j = 0; j < 4; ++j) decoded[j] = old[j] + times * decoded[j];
          }
          if (existing.Has(at)) Store4(decoded, existing.OfFour(at), aligned, out + at);
        }
      });
    }
  };
  ForPlaces<kDecodeRounds>(layout, first, end, read, work);
}

template <typename T, bool kAdds>
__global__ __launch_bounds__(kThreads) void DecodePlain(
    const __grid_constant__ TensorPointers<T*> tensors, const __grid_constant__ LayoutView layout,
    const float* plain, float scale, const float* factor, int64_t first_run, int64_t num_runs) {
  const PlainRun* const runs = layout.plain_runs + first_run;
  const PlainRun& last = runs[num_runs - 1];
  const int64_t i = runs[0].first + static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= last.first + last.size) return;
  const int64_t run = LastBy(i, runs, num_runs, &PlainRun::first);
  T* const value = tensors.at[run] + i - runs[run].first;
  if constexpr (kAdds) {
    *value += *factor * (plain[i] * scale);
  } else {
    *value = FromFloat<T>(plain[i] * scale);
  }
}

}  // namespace

void LaunchSumPlain(const DeviceLayout& layout, const int32_t* messages, float* plain,
                    cudaStream_t stream, cudaError_t* status) {
  Launch(stream, CeilDiv(layout.layout.plain_size(), kThreads), kThreads, status, SumPlain,
         layout.layout.view(layout.table), messages, plain);
}

const char* OneBitDecodeSum(const DeviceLayout& layout, int64_t rank, const int32_t* messages,
                            float* aggregate, float* plain, void* stream_of_op) {
  const cudaStream_t stream = static_cast<cudaStream_t>(stream_of_op);
  cudaError_t status = cudaSuccess;
  const int64_t columns = layout.layout.shard_columns(rank);
  Launch(stream, CeilDiv(columns, kDecodeSumRounds * kWarps), kThreads, &status, DecodeSumColumns,
         layout.layout.view(layout.table), rank, messages, aggregate);
  LaunchSumPlain(layout, messages, plain, stream, &status);
  return TextOf(status);
}

// Decodes into tensors, or adds `factor` times the decoded values to them.
template <typename T, bool kAdds>
cudaError_t Decode(const DeviceLayout& layout, const int32_t* messages, int bits,
                   const float* plain, float scale, const float* value_scales, const float* factor,
                   const std::vector<void*>& tensors, cudaStream_t stream) {
  cudaError_t status = cudaSuccess;
  const LayoutView view = layout.layout.view(layout.table);
  const auto one_kind = [](int64_t) { return 0; };
  const auto unscaled =
      bits == 1 ? DecodeColumns<T, 1, false, kAdds> : DecodeColumns<T, 2, false, kAdds>;
  const auto scaled =
      bits == 1 ? DecodeColumns<T, 1, true, kAdds> : DecodeColumns<T, 2, true, kAdds>;
  ForColumnRuns(layout.layout, one_kind, [&](const ColumnRun& run) {
    const int64_t blocks = CeilDiv(run.end - run.first, kDecodeRounds * kWarps);
    Launch(stream, blocks, kThreads, &status, value_scales == nullptr ? unscaled : scaled,
           PointersOf<T>(tensors, run.first_tensor, run.end_tensor), view, run.first_tensor,
           messages, scale, value_scales, factor, run.first, run.end);
  });
  ForPlainRuns<T>(layout.layout, tensors, [&](const TensorPointers<T*>& pointers, int64_t first,
                                              int64_t runs, int64_t values) {
    Launch(stream, CeilDiv(values, kThreads), kThreads, &status, DecodePlain<T, kAdds>, pointers,
           view, plain, scale, factor, first, runs);
  });
  return status;
}

const char* OneBitDecode(const DeviceLayout& layout, FloatType type, const int32_t* messages,
                         int bits, const float* plain, float scale, const float* value_scales,
                         const std::vector<void*>& gradients, void* stream) {
  return WithType(type, [&](auto zero) {
    return TextOf(Decode<decltype(zero), false>(layout, messages, bits, plain, scale, value_scales,
                                                nullptr, gradients,
                                                static_cast<cudaStream_t>(stream)));
  });
}

const char* OneBitDecodeAdd(const DeviceLayout& layout, const int32_t* messages, int bits,
                            const float* plain, float scale, const float* value_scales,
                            const float* factor, const std::vector<void*>& variables,
                            void* stream) {
  return TextOf(Decode<float, true>(layout, messages, bits, plain, scale, value_scales, factor,
                                    variables, static_cast<cudaStream_t>(stream)));
}

}  // namespace gpu
}  // namespace tf_onebit
