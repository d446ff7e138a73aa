// The one-bit encoding on a GPU.
//
// Time goes to memory: encoding reads a gradient and its residual once, and writes the residual and
// a bit. A warp has a whole column in its registers. As in a word of codes, its threads hold 32
// values side by side. So a ballot is a word, and sums are in the order of lib/lanes.h. Columns
// that are too long for the registers are read again, by then from the cache.

#include "kernels/one_bit_gpu.h"

#include <algorithm>

#include "kernels/gpu.h"
#include "kernels/one_bit_common_gpu.h"
#include "kernels/one_bit_long_columns_gpu.h"
#include "kernels/one_bit_sources_gpu.h"

namespace tf_onebit {
namespace gpu {
namespace {

// Calls work(value, whether it exists) for all values of a column. Stores the ballots of its
// results as the column's codes. Returns how many codes are 1.
template <int kPerLane, typename Existing, typename Work>
__device__ int Encode(const WarpValues<kPerLane>& values, const Existing& existing, uint32_t* codes,
                      const Work& work) {
  static_assert(kPerLane <= kWarpSize);
  const int lane = LaneOfThread();
  uint32_t mine = 0;
  int ones = 0;
#pragma unroll
  for (int m = 0; m < kPerLane; ++m) {
    const uint32_t word =
        __ballot_sync(kWholeWarp, work(values.at[m], existing.Has(values.ValueOf(m))));
    ones += __popc(word);
    if (m == lane) mine = word;
  }
  if (lane < kPerLane && existing.Has(lane * kWordBits)) codes[lane] = mine;
  return ones;
}

// Encodes a column on a warp.
template <int kPerLane, typename Values, typename R, typename Existing>
__device__ void EncodeColumn(const Encoding& encoding, Target<Values, R> target,
                             const Existing& existing) {
  WarpValues<kPerLane> corrected;
  target.values.Load(existing, &corrected);
  if (target.residual != nullptr) corrected.Add(target.residual, existing);

  float squares = 0;
#pragma unroll 1
  for (int row = 0; row < encoding.bits; ++row) {
    float threshold, zero, one;
    bool finite;
    if (encoding.rule == LevelRule::kMean) {
      float below = 0, above = 0;
      const int ones = Encode(corrected, existing, target.codes, [&](float value, bool exists) {
        const bool code = exists && CodeOf(value, 0.0f);
        if (code) above += value;
        if (exists && !code) below += value;
        return code;
      });
      below = WarpSum(below);
      above = WarpSum(above);
      finite = IsFinite(below) && IsFinite(above);
      threshold = 0.0f;
      zero = Mean(below, existing.count - ones);
      one = Mean(above, ones);
    } else {
      float sum = 0, deviation = 0;
#pragma unroll
      for (int m = 0; m < kPerLane; ++m) {
        if (existing.Has(corrected.ValueOf(m))) sum += corrected.at[m];
      }
      sum = WarpSum(sum);
      threshold = Mean(sum, existing.count);
      Encode(corrected, existing, target.codes, [&](float value, bool exists) {
        if (exists) deviation += fabsf(value - threshold);
        return exists && CodeOf(value, threshold);
      });
      deviation = WarpSum(deviation);
      finite = IsFinite(sum) && IsFinite(deviation);
      const float mean_deviation = Mean(deviation, existing.count);
      zero = threshold - mean_deviation;
      one = threshold + mean_deviation;
    }
    if (!finite) {
      __syncwarp();  // other threads than before store the codes
      FailColumn(encoding, target, row, LaneOfThread(), kWarpSize);
      // The residual is what the rows before left.
      if (row > 0) corrected.Store(existing, target.residual);
      return;
    }
    if (LaneOfThread() < 2) target.levels[LaneOfThread()] = LaneOfThread() == 0 ? zero : one;
    if (target.residual != nullptr) {
      const float levels[] = {zero, one};
      const Dither dither(levels);
      squares = 0;
#pragma unroll
      for (int m = 0; m < kPerLane; ++m) {
        const float value = corrected.at[m];
        const float exact = NewResidual(value, CodeOf(value, threshold) ? one : zero);
        const float rest = Stored<R>(exact, dither, corrected.ValueOf(m));
        if (existing.Has(corrected.ValueOf(m))) squares += rest * rest;
        corrected.at[m] = rest;
      }
    }
    NextRow(encoding, &target);
  }
  if (target.residual != nullptr) {
    corrected.Store(existing, target.residual);
    squares = WarpSum(squares);
  }
  if (LaneOfThread() == 0) *target.sum = squares;
}

// Encodes the columns [first, end), of at most 32 * kPerLane values each. A warp encodes one
// column. For four blocks of threads on a multiprocessor nvcc spills registers.
template <typename Source, typename R, int kPerLane>
__global__ __launch_bounds__(kThreads, kPerLane == 16 ? 3 : 1) void EncodeColumns(
    const __grid_constant__ Source source, const __grid_constant__ Encoding encoding, int64_t first,
    int64_t end) {
  __shared__ Place places[1][kWarps];
  first += static_cast<int64_t>(blockIdx.x) * kWarps;
  FindPlaces(encoding.layout, first, end, places);
  const int64_t index = first + WarpOfThread();
  if (index >= end) return;
  const auto target = TargetOf<R>(source, encoding, index, places[0][WarpOfThread()]);
  WithExisting<kPerLane * kWarpSize>(target.count, [&](const auto& existing) {
    EncodeColumn<kPerLane>(encoding, target, existing);
  });
}

// Copies plain values into the messages to all shards.
template <typename T>
__global__ __launch_bounds__(kThreads) void CopyPlain(
    const __grid_constant__ TensorPointers<const T*> tensors,
    const __grid_constant__ Encoding encoding, int64_t first_run, int64_t num_runs) {
  const LayoutView& layout = encoding.layout;
  const PlainRun* const runs = layout.plain_runs + first_run;
  const PlainRun& last = runs[num_runs - 1];
  const int64_t i = runs[0].first + static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= last.first + last.size) return;
  const int64_t run = LastBy(i, runs, num_runs, &PlainRun::first);
  const float value = ToFloat(tensors.at[run][i - runs[run].first]);
  if (!IsFinite(value)) {
    atomicMin(&encoding.scratch.flags->first_failure, static_cast<uint32_t>(runs[run].tensor));
  }
  float* const messages = reinterpret_cast<float*>(encoding.messages + layout.plain_at + i);
  for (int64_t k = 0; k < layout.num_shards; ++k) messages[k * encoding.row_words] = value;
}

// Adds up the sums of columns in the order of SumOfMany. Blocks of threads share the lanes, and the
// last to finish adds these up. `block` is in [0, kSumBlocks).
__device__ void SumColumns(const Scratch& scratch, int64_t num_columns, int block, float* total) {
  __shared__ double lanes[kManyLanes];
  __shared__ bool is_last;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kLanesPerBlock) {
    const int lane = block * kLanesPerBlock + thread;
    double sum = 0;
    ReadAhead<32>(scratch.sums, lane, num_columns, kManyLanes, [&](double value) { sum += value; });
    scratch.lanes[lane] = sum;
    __threadfence();
  }
  __syncthreads();
  if (thread == 0) is_last = atomicAdd(&scratch.flags->finished_blocks, 1u) == kSumBlocks - 2u;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  for (int i = thread; i < kManyLanes; i += kThreads) lanes[i] = __ldcg(scratch.lanes + i);
  SumLanesOnBlock(lanes);
  if (thread == 0) *total = static_cast<float>(lanes[0]);
}

// Adds up the sums of `num_columns` columns in the first kSumBlocks blocks. Block kSumBlocks + k
// writes the flag of row k of all messages, and zeroes what its levels and codes leave. Shards
// differ by a column. The bound of 1 lets nvcc take the registers that ReadAhead needs.
__global__ __launch_bounds__(kThreads, 1) void FinishEncode(
    const __grid_constant__ Encoding encoding, int64_t num_columns, float* sum_of_squares) {
  const int block = static_cast<int>(blockIdx.x);
  if (block < kSumBlocks) return SumColumns(encoding.scratch, num_columns, block, sum_of_squares);
  const int thread = static_cast<int>(threadIdx.x);
  const LayoutView& layout = encoding.layout;
  const int64_t row = block - kSumBlocks;
  const ShardStart* const shard = layout.shards + encoding.first_shard + row / encoding.bits;
  int32_t* const message = encoding.messages + row * encoding.row_words;
  const int64_t levels_end = layout.levels_at + 2 * (shard[1].column - shard[0].column);
  const int64_t codes_end = layout.codes_at + shard[1].word - shard[0].word;
  for (int64_t i = levels_end + thread; i < layout.codes_at; i += kThreads) message[i] = 0;
  for (int64_t i = codes_end + thread; i < layout.plain_at; i += kThreads) message[i] = 0;
  const uint32_t failure = encoding.scratch.flags->first_failure;
  if (thread == 0) message[0] = failure == kNoFailure ? 0 : static_cast<int32_t>(1 + failure);
}

// Returns the registers that a column takes in each thread of a warp, or 0 if it is too long.
int PerLane(int64_t column_size) {
  for (int per_lane : {4, 16, 32}) {
    if (column_size <= per_lane * kWarpSize) return per_lane;
  }
  return 0;
}

template <typename R, typename Source>
void LaunchEncodeAs(const Source& source, const Encoding& encoding, int64_t first, int64_t end,
                    int64_t longest, cudaStream_t stream, cudaError_t* status) {
  const int64_t blocks = CeilDiv(end - first, kWarps);
  switch (PerLane(longest)) {
    case 4:
      return Launch(stream, blocks, kThreads, status, EncodeColumns<Source, R, 4>, source, encoding,
                    first, end);
    case 16:
      return Launch(stream, blocks, kThreads, status, EncodeColumns<Source, R, 16>, source, encoding,
                    first, end);
    case 32:
      return Launch(stream, blocks, kThreads, status, EncodeColumns<Source, R, 32>, source, encoding,
                    first, end);
    default:
      return Launch(stream, end - first, kThreads, status, EncodeLongColumns<Source, R>, source,
                    encoding, first);
  }
}

template <typename Source>
void LaunchEncode(const Source& source, const Encoding& encoding, int64_t first, int64_t end,
                  int64_t longest, cudaStream_t stream, cudaError_t* status) {
  const auto launch = encoding.residual_type == FloatType::kBfloat16
                          ? LaunchEncodeAs<bfloat16, Source>
                          : LaunchEncodeAs<float, Source>;
  launch(source, encoding, first, end, longest, stream, status);
}

Encoding EncodingOf(const DeviceLayout& layout, const OneBitQuantizer& quantizer,
                    int32_t* messages, int64_t row_words, int64_t first_shard,
                    int64_t num_columns, void* scratch_memory, cudaStream_t stream,
                    cudaError_t* status) {
  const Scratch scratch(scratch_memory, num_columns);
  *status = cudaMemsetAsync(scratch.flags, 0xFF, sizeof(*scratch.flags), stream);
  return {layout.layout.view(layout.table),
          quantizer.rule,
          quantizer.bits,
          quantizer.residual_type,
          quantizer.residual,
          messages,
          row_words,
          first_shard,
          scratch};
}

template <typename Source>
const char* EncodeShard(const DeviceLayout& layout, int64_t rank, const Source& source,
                        const OneBitQuantizer& quantizer, int32_t* message, void* scratch,
                        cudaStream_t stream) {
  cudaError_t status;
  const int64_t num_columns = layout.layout.shard_columns(rank);
  const Encoding encoding =
      EncodingOf(layout, quantizer, message, layout.layout.shard_message_words(), rank, num_columns,
                 scratch, stream, &status);
  const int64_t begin = layout.layout.shard(rank).column, end = begin + num_columns;
  ForColumnRuns(layout.layout, PerLane, [&](const ColumnRun& run) {
    const int64_t first = std::max(run.first, begin), last = std::min(run.end, end);
    if (first < last) {
      LaunchEncode(source, encoding, first, last, run.longest, stream, &status);
    }
  });
  Launch(stream, kSumBlocks + quantizer.bits, kThreads, &status, FinishEncode, encoding, num_columns,
         quantizer.sum_of_squares);
  return TextOf(status);
}

}  // namespace

int64_t OneBitScratchBytes(int64_t num_columns) {
  return Scratch::Bytes(num_columns);
}

const char* OneBitEncode(const DeviceLayout& layout, FloatType type,
                         const std::vector<const void*>& gradients, const float* value_scales,
                         const OneBitQuantizer& quantizer, int32_t* messages, void* scratch,
                         void* stream_of_op) {
  const cudaStream_t stream = static_cast<cudaStream_t>(stream_of_op);
  cudaError_t status;
  const Encoding encoding =
      EncodingOf(layout, quantizer, messages, layout.layout.worker_message_words(), 0,
                 layout.layout.num_columns(), scratch, stream, &status);
  WithType(type, [&](auto zero) {
    using T = decltype(zero);
    ForColumnRuns(layout.layout, PerLane, [&](const ColumnRun& run) {
      const Gradients<T> source = {
          PointersOf<const T>(gradients, run.first_tensor, run.end_tensor), run.first_tensor};
      const auto launch = [&](const auto& source) {
        LaunchEncode(source, encoding, run.first, run.end, run.longest, stream, &status);
      };
      if (value_scales == nullptr) {
        launch(source);
      } else {
        launch(ScaledGradients<T>{source, value_scales});
      }
    });
    ForPlainRuns<const T>(layout.layout, gradients, [&](const TensorPointers<const T*>& pointers,
                                                        int64_t first, int64_t runs,
                                                        int64_t values) {
      Launch(stream, CeilDiv(values, kThreads), kThreads, &status, CopyPlain<T>, pointers, encoding,
             first, runs);
    });
  });
  Launch(stream, kSumBlocks + layout.layout.num_shards(), kThreads, &status, FinishEncode, encoding,
         layout.layout.num_columns(), quantizer.sum_of_squares);
  return TextOf(status);
}

const char* OneBitEncodeShard(const DeviceLayout& layout, int64_t rank, const float* aggregate,
                              const OneBitQuantizer& quantizer, int32_t* message, void* scratch,
                              void* stream_of_op) {
  const Aggregate source = {aggregate, layout.layout.shard(rank).value};
  return EncodeShard(layout, rank, source, quantizer, message, scratch,
                     static_cast<cudaStream_t>(stream_of_op));
}

const char* OneBitAggregate(const DeviceLayout& layout, int64_t rank, const int32_t* messages,
                            const OneBitQuantizer& quantizer, int32_t* message, float* plain,
                            void* scratch, void* stream_of_op) {
  const cudaStream_t stream = static_cast<cudaStream_t>(stream_of_op);
  const Messages source = {messages};
  const char* const error = EncodeShard(layout, rank, source, quantizer, message, scratch, stream);
  if (error != nullptr) return error;
  cudaError_t status = cudaSuccess;
  LaunchSumPlain(layout, messages, plain, stream, &status);
  return TextOf(status);
}

}  // namespace gpu
}  // namespace tf_onebit
