// The decoding of threshold messages on a GPU, and the updates of variables by them.

#include "kernels/gpu.h"
#include "kernels/threshold_gpu.h"
#include "kernels/threshold_tensors_gpu.h"

namespace tf_onebit {
namespace gpu {
namespace {

// Returns the codes of a row. An impossible number in its header is limited.
struct Codes {
  const uint32_t* codes;
  int64_t count;
  float step;

  __device__ Codes(const ThresholdRows& rows, int64_t row) {
    const int32_t* const words = rows.row(row);
    const int64_t said = static_cast<uint32_t>(words[kCountWord]);
    const int64_t room = rows.num_words - kHeaderWords;
    codes = reinterpret_cast<const uint32_t*>(words + kHeaderWords);
    count = said < room ? said : room;
    step = FloatOf(static_cast<uint32_t>(words[kStepWord]));
  }

  // Returns how many codes have lower indices. The two halves of a warp may ask for different ones.
  // A half cuts the codes that are left into 17 parts at once, and keeps one. All threads of the warp
  // must call it.
  __device__ int64_t BelowInHalves(int64_t index) const {
    constexpr int kHalf = kWarpSize / 2;
    const int half = LaneOfThread() / kHalf * kHalf, lane = LaneOfThread() % kHalf;
    int64_t begin = 0, end = count;
    while (__ballot_sync(kWholeWarp, begin < end) != 0) {
      const int64_t part = (end - begin) / (kHalf + 1) + 1;
      const int64_t probe = begin + (lane + 1) * part - 1;
      const bool is_below = probe < end && IndexOf(codes[probe]) < index;
      // Codes ascend, so that those of the lower threads are below, too.
      const uint32_t below = __ballot_sync(kWholeWarp, is_below) >> half & ((1u << kHalf) - 1);
      begin += __popc(below) * part;
      end = begin + part - 1 < end ? begin + part - 1 : end;
    }
    return begin;
  }
};

// The codes of a message that are about a block of values: places among the words of all rows.
struct Span {
  int64_t begin, end;
  float step;
};

// Decodes a block of values. A block of threads adds up the messages in shared memory. With a factor
// the sums are added to the values that are there, and most of these are not even read.
template <typename T, bool kAdds>
__global__ __launch_bounds__(kThreads) void DecodeSumBlocks(
    const __grid_constant__ TensorPointers<T*> tensors, const __grid_constant__ PartsView parts,
    const __grid_constant__ ThresholdRows rows, float scale, const float* factor,
    int64_t first_tensor, int64_t first) {
  __shared__ float4 memory[kBlockSize / 4];
  __shared__ Block block;
  __shared__ Span spans[kWarps];
  float* const sums = &memory[0].x;
  const int thread = static_cast<int>(threadIdx.x), warp = WarpOfThread();
  if (thread == 0) block = parts.block(first + blockIdx.x);
  for (int i = thread; i < kBlockSize / 4; i += kThreads) memory[i] = {};
  __syncthreads();
  const int count = static_cast<int>(block.count);
  const int64_t first_index = block.value - parts.parts[block.part].value;
  const int64_t num_messages = rows.num_rows / parts.num_parts;
  for (int64_t k = 0; k < num_messages; k += kWarps) {
    const int at_once = static_cast<int>(num_messages - k < kWarps ? num_messages - k : kWarps);
    if (warp < at_once) {
      const int64_t row = (k + warp) * parts.num_parts + block.part;
      const Codes codes(rows, row);
      const int half = LaneOfThread() / (kWarpSize / 2);
      const int64_t at = row * rows.num_words + kHeaderWords +
                         codes.BelowInHalves(first_index + half * count);
      Span& span = spans[warp];
      (half == 0 ? span.begin : span.end) = at;
      span.step = codes.step;
    }
    __syncthreads();
    for (int j = 0; j < at_once; ++j) {
      const Span span = spans[j];
      if (span.begin >= span.end) continue;
      for (int64_t i = span.begin + thread; i < span.end; i += kThreads) {
        const uint32_t code = static_cast<uint32_t>(rows.words[i]);
        const int64_t at = IndexOf(code) - first_index;
        if (at >= 0 && at < count) sums[at] += SignedStep(code, span.step);
      }
      __syncthreads();
    }
    __syncthreads();
  }
  T* const out = tensors.at[block.tensor - first_tensor] + block.offset;
  if constexpr (kAdds) {
    for (int i = thread; i < count; i += kThreads) {
      if (sums[i] != 0) out[i] += *factor * (scale * sums[i]);
    }
    return;
  }
  const bool aligned = IsAligned(out);
  for (int i = thread * 4; i < count; i += kThreads * 4) {
    const float4 four = memory[i / 4];
    const T values[4] = {FromFloat<T>(four.x * scale), FromFloat<T>(four.y * scale),
                         FromFloat<T>(four.z * scale), FromFloat<T>(four.w * scale)};
    Store4(values, count - i, aligned, out + i);
  }
}

// Updates variables by the values of one row.
__global__ __launch_bounds__(kThreads) void UpdateByRow(
    const __grid_constant__ TensorPointers<float*> tensors, const __grid_constant__ PartsView parts,
    const __grid_constant__ ThresholdRows rows, int64_t row, ThresholdUpdate update,
    int64_t first_tensor, int64_t end_tensor) {
  const Codes codes(rows, row);
  const int64_t part = row % parts.num_parts;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= codes.count) return;
  const int64_t value = parts.parts[part].value + IndexOf(codes.codes[i]);
  if (value >= parts.parts[part + 1].value) return;
  const Stripe& stripe =
      parts.stripes[LastBy(value, parts.stripes, parts.num_stripes, &Stripe::value)];
  const int64_t in_stripe = value - stripe.value;
  if (stripe.tensor < first_tensor || stripe.tensor >= end_tensor || in_stripe >= stripe.count) {
    return;
  }
  float* const variable = tensors.at[stripe.tensor - first_tensor] + stripe.offset + in_stripe;
  *variable = Updated(*variable, update, codes.codes[i], codes.step);
}

}  // namespace

const char* ThresholdDecodeSum(const DeviceParts& parts, FloatType type,
                               const ThresholdRows& messages, float scale,
                               const std::vector<void*>& gradients, void* stream_of_op) {
  const cudaStream_t stream = static_cast<cudaStream_t>(stream_of_op);
  const PartsView view = parts.parts.view(parts.table);
  cudaError_t status = cudaSuccess;
  WithType(type, [&](auto zero) {
    using T = decltype(zero);
    ForTensors<T>(parts.parts, gradients, [&](const TensorPointers<T*>& pointers,
                                              int64_t first_tensor, int64_t, int64_t first,
                                              int64_t end) {
      Launch(stream, end - first, kThreads, &status, DecodeSumBlocks<T, false>, pointers, view,
             messages, scale, static_cast<const float*>(nullptr), first_tensor, first);
    });
  });
  return TextOf(status);
}

const char* ThresholdDecodeAdd(const DeviceParts& parts, const ThresholdRows& messages, float scale,
                               const float* factor, const std::vector<void*>& variables,
                               void* stream_of_op) {
  const cudaStream_t stream = static_cast<cudaStream_t>(stream_of_op);
  const PartsView view = parts.parts.view(parts.table);
  cudaError_t status = cudaSuccess;
  ForTensors<float>(parts.parts, variables, [&](const TensorPointers<float*>& pointers,
                                                int64_t first_tensor, int64_t, int64_t first,
                                                int64_t end) {
    Launch(stream, end - first, kThreads, &status, DecodeSumBlocks<float, true>, pointers, view,
           messages, scale, factor, first_tensor, first);
  });
  return TextOf(status);
}

const char* UpdateVariables(const DeviceParts& parts, const ThresholdRows& messages,
                            ThresholdUpdate update, const std::vector<void*>& variables,
                            void* stream_of_op) {
  const cudaStream_t stream = static_cast<cudaStream_t>(stream_of_op);
  const PartsView view = parts.parts.view(parts.table);
  cudaError_t status = cudaSuccess;
  const int64_t blocks = CeilDiv(messages.num_words - kHeaderWords, kThreads);
  ForTensors<float>(parts.parts, variables, [&](const TensorPointers<float*>& pointers,
                                                int64_t first_tensor, int64_t end_tensor, int64_t,
                                                int64_t) {
    for (int64_t row = 0; row < messages.num_rows; ++row) {
      Launch(stream, blocks, kThreads, &status, UpdateByRow, pointers, view, messages, row, update,
             first_tensor, end_tensor);
    }
  });
  return TextOf(status);
}

}  // namespace gpu
}  // namespace tf_onebit
