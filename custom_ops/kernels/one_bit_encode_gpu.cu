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

namespace tf_onebit {
namespace gpu {
namespace {

// FinishEncode adds up the columns' sums on so many blocks of threads. One multiprocessor alone
// would read them too slowly.
constexpr int kSumBlocks = 32;
constexpr int kLanesPerBlock = kManyLanes / kSumBlocks;
static_assert(kManyLanes % kSumBlocks == 0 && kLanesPerBlock <= kThreads);

// Memory that encoding hands on to FinishEncode: the sum of squares of each column, and whether a
// value was not finite. FinishEncode uses the rest for itself.
struct Scratch {
  double* sums;
  double* lanes;  // the partial sums of SumOfMany
  struct Flags {
    uint32_t first_failure;    // the first tensor with a value that is not finite
    uint32_t finished_blocks;  // of those that add up sums. It begins at -1: one memset sets both.
  };
  Flags* flags;

  Scratch(void* memory, int64_t num_columns)
      : sums(static_cast<double*>(memory)),
        lanes(sums + num_columns),
        flags(reinterpret_cast<Flags*>(lanes + kManyLanes)) {}

  static int64_t Bytes(int64_t num_columns) {
    return (num_columns + kManyLanes) * sizeof(double) + sizeof(Flags);
  }
};

// The columns to encode, and their destination. Messages of shards follow each other, beginning
// with `first_shard`. Each has `bits` rows of `row_words` words. Residuals and sums begin with the
// first value and column of that shard.
struct Encoding {
  LayoutView layout;
  LevelRule rule;
  int bits;
  float* residual;
  int32_t* messages;
  int64_t row_words, first_shard;
  Scratch scratch;
};

// A column to encode. Values says where its values come from. The levels and codes are those of
// the first row.
template <typename Values>
struct Target {
  Values values;
  int64_t count;
  int tensor;
  float* residual;
  float* levels;
  uint32_t* codes;
  double* sum;
};

template <typename Source>
__device__ Target<typename Source::Values> TargetOf(const Source& source, const Encoding& encoding,
                                                    int64_t index, const Place& place) {
  const ShardStart& first = encoding.layout.shards[encoding.first_shard];
  const int64_t row = (place.shard - encoding.first_shard) * encoding.bits;
  int32_t* const message = encoding.messages + row * encoding.row_words;
  const int64_t value = place.column.value - first.value;
  return {source.Of(encoding.layout, place),
          place.column.count,
          place.column.tensor,
          encoding.residual == nullptr ? nullptr : encoding.residual + value,
          reinterpret_cast<float*>(message + place.levels),
          reinterpret_cast<uint32_t*>(message + place.codes),
          encoding.scratch.sums + index - first.column};
}

// The sources of values to encode. For a column, At(i) is value i, and Load() gives a warp all.

// Values in memory, of type T.
template <typename T>
struct ValuesInMemory {
  const T* data;

  __device__ float At(int64_t i) const { return ToFloat(data[i]); }

  template <int kPerLane, typename Existing>
  __device__ void Load(const Existing& existing, WarpValues<kPerLane>* values) const {
    values->Load(data, existing);
  }
};

template <typename T>
struct Gradients {
  using Values = ValuesInMemory<T>;
  TensorPointers<const T*> tensors;
  int first_tensor;

  __device__ Values Of(const LayoutView&, const Place& place) const {
    return {tensors.at[place.column.tensor - first_tensor] + place.column.offset};
  }
};

// Gradients that are divided by the scales of their values.
template <typename T>
struct ScaledGradients {
  Gradients<T> gradients;
  const float* value_scales;

  struct Values {
    ValuesInMemory<T> gradient;
    const float* scales;

    __device__ float At(int64_t i) const { return gradient.At(i) / scales[i]; }

    template <int kPerLane, typename Existing>
    __device__ void Load(const Existing& existing, WarpValues<kPerLane>* values) const {
      gradient.Load(existing, values);
      values->Divide(scales, existing);
    }
  };

  __device__ Values Of(const LayoutView& layout, const Place& place) const {
    return {gradients.Of(layout, place), value_scales + place.column.value};
  }
};

struct Aggregate {
  using Values = ValuesInMemory<float>;
  const float* aggregate;
  int64_t first_value;

  __device__ Values Of(const LayoutView&, const Place& place) const {
    return {aggregate + place.column.value - first_value};
  }
};

// The sums of the messages of all workers.
struct Messages {
  const int32_t* messages;

  struct Values {
    const int32_t* levels;  // of the first message, as its codes
    const uint32_t* codes;
    int64_t stride, count;

    __device__ float At(int64_t i) const {
      float sum = 0;
      for (int64_t k = 0; k < count; ++k) {
        const uint32_t word = codes[k * stride + i / kWordBits];
        const int32_t level = levels[k * stride + (word >> (i % kWordBits) & 1)];
        sum += FloatOf(static_cast<uint32_t>(level));
      }
      return sum;
    }

    template <int kPerLane, typename Existing>
    __device__ void Load(const Existing& existing, WarpValues<kPerLane>* values) const {
      using Staged = StagedMessages<kPerLane>;
      __shared__ Staged staging[kWarps];
      Staged& staged = staging[WarpOfThread()];
      const int lane = LaneOfThread();
#pragma unroll
      for (int m = 0; m < kPerLane; ++m) values->at[m] = 0;
      for (int64_t k = 0; k < count; k += Staged::kMessages) {
        staged.Put(Staged::Read(levels + k * stride, codes + k * stride, stride, count - k,
                                existing.count));
        const int left = Staged::OfChunk(count - k);
#pragma unroll 4
        for (int i = 0; i < left; ++i) {
          const float zero = staged.levels[i][0], one = staged.levels[i][1];
#pragma unroll
          for (int m = 0; m < kPerLane; m += 4) {
            const uint4 four = staged.words[i][m / 4];
            const uint32_t words[] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              values->at[m + j] += words[j] >> lane & 1 ? one : zero;
            }
          }
        }
      }
#pragma unroll
      for (int m = 0; m < kPerLane; ++m) {
        if (!existing.Has(values->ValueOf(m))) values->at[m] = 0;
      }
    }
  };

  __device__ Values Of(const LayoutView& layout, const Place& place) const {
    return {messages + place.levels, reinterpret_cast<const uint32_t*>(messages + place.codes),
            layout.worker_message_words(), layout.num_shards};
  }
};

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

// Moves the levels and codes of a column to the next row of its message.
template <typename Values>
__device__ void NextRow(const Encoding& encoding, Target<Values>* target) {
  target->levels += encoding.row_words;
  target->codes += encoding.row_words;
}

// Sends the rows of a column from `first` on as zeros. `target` is that of row `first`.
template <typename Values>
__device__ void FailColumn(const Encoding& encoding, Target<Values> target, int first, int thread,
                           int threads) {
  for (int row = first; row < encoding.bits; ++row) {
    for (int64_t i = thread; i < NumWords(target.count); i += threads) target.codes[i] = 0;
    if (thread == 0) target.levels[0] = target.levels[1] = 0.0f;
    NextRow(encoding, &target);
  }
  if (thread == 0) {
    *target.sum = 0.0;
    atomicMin(&encoding.scratch.flags->first_failure, static_cast<uint32_t>(target.tensor));
  }
}

// Encodes a column on a warp.
template <int kPerLane, typename Values, typename Existing>
__device__ void EncodeColumn(const Encoding& encoding, Target<Values> target,
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
      squares = 0;
#pragma unroll
      for (int m = 0; m < kPerLane; ++m) {
        const float value = corrected.at[m];
        const float rest = NewResidual(value, CodeOf(value, threshold) ? one : zero);
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
template <typename Source, int kPerLane>
__global__ __launch_bounds__(kThreads, kPerLane == 16 ? 3 : 1) void EncodeColumns(
    const __grid_constant__ Source source, const __grid_constant__ Encoding encoding, int64_t first,
    int64_t end) {
  __shared__ Place places[1][kWarps];
  first += static_cast<int64_t>(blockIdx.x) * kWarps;
  FindPlaces(encoding.layout, first, end, places);
  const int64_t index = first + WarpOfThread();
  if (index >= end) return;
  const auto target = TargetOf(source, encoding, index, places[0][WarpOfThread()]);
  WithExisting<kPerLane * kWarpSize>(target.count, [&](const auto& existing) {
    EncodeColumn<kPerLane>(encoding, target, existing);
  });
}

// Sums over a column by all warps of a block. Each warp takes blocks of kBlockSize values.
class ColumnSums {
 public:
  // Calls work(first value, end) for blocks of the column. Its results, the same on all threads of
  // the warp, are added up in the blocks' order. The sum is the same on all threads.
  template <typename Work>
  __device__ double Sum(int64_t count, const Work& work) {
    double sum = 0;
    for (int64_t round = 0; round < count; round += kWarps * kBlockSize) {
      const int64_t begin = round + WarpOfThread() * kBlockSize;
      if (begin < count) {
        const double of_block = work(begin, begin + kBlockSize < count ? begin + kBlockSize : count);
        if (LaneOfThread() == 0) of_blocks_[WarpOfThread()] = of_block;
      }
      __syncthreads();
      for (int i = 0; i < kWarps && round + i * kBlockSize < count; ++i) sum += of_blocks_[i];
      __syncthreads();
    }
    return sum;
  }

 private:
  double of_blocks_[kWarps];
};

// Encodes the columns from `first` on, of any length. A block of threads encodes one column.
template <typename Source>
__global__ __launch_bounds__(kThreads) void EncodeLongColumns(
    const __grid_constant__ Source source, const __grid_constant__ Encoding encoding,
    int64_t first) {
  __shared__ ColumnSums sums;
  const int64_t index = first + blockIdx.x;
  auto target = TargetOf(source, encoding, index, PlaceOf(encoding.layout, index));
  const int64_t count = target.count;
  int row = 0;
  const auto corrected = [&](int64_t i) {
    // Later rows quantize the residual alone.
    if (row > 0) return target.residual[i];
    const float value = target.values.At(i);
    return target.residual == nullptr ? value : value + target.residual[i];
  };
  // Returns the sum of work(value, its index, whether it exists) over the values of a block.
  const auto sum_of = [&](const auto& work) {
    return sums.Sum(count, [&](int64_t begin, int64_t block_end) {
      float sum = 0;
#pragma unroll 4
      for (int64_t i = begin + LaneOfThread(); i - LaneOfThread() < block_end; i += kWarpSize) {
        // All threads of the warp call it, because it may contain a ballot.
        const bool exists = i < block_end;
        sum += work(exists ? corrected(i) : 0.0f, i, exists);
      }
      return WarpSum(sum);
    });
  };
  const auto store_codes = [&](bool code, int64_t i) {
    const uint32_t word = __ballot_sync(kWholeWarp, code);
    if (LaneOfThread() == 0) target.codes[i / kWordBits] = word;
    return __popc(word);
  };

  double squares = 0;
  for (; row < encoding.bits; ++row) {
    float threshold, levels[2];
    bool finite;
    if (encoding.rule == LevelRule::kMean) {
      const double above = sum_of([&](float value, int64_t i, bool exists) {
        const bool code = exists && CodeOf(value, 0.0f);
        store_codes(code, i);
        return code ? value : 0.0f;
      });
      const double below = sum_of([&](float value, int64_t, bool) {
        return CodeOf(value, 0.0f) ? 0.0f : value;
      });
      const double ones = sums.Sum(count, [&](int64_t begin, int64_t block_end) {
        int in_block = 0;
        for (int64_t i = begin + LaneOfThread() * kWordBits; i < block_end;
             i += kWarpSize * kWordBits) {
          in_block += __popc(target.codes[i / kWordBits]);
        }
        return WarpSum(in_block);
      });
      finite = IsFinite(below) && IsFinite(above);
      threshold = 0.0f;
      levels[0] = Mean(below, count - static_cast<int64_t>(ones));
      levels[1] = Mean(above, static_cast<int64_t>(ones));
    } else {
      const double sum = sum_of([&](float value, int64_t, bool) { return value; });
      threshold = Mean(sum, count);
      const double deviation = sum_of([&](float value, int64_t i, bool exists) {
        store_codes(exists && CodeOf(value, threshold), i);
        return exists ? fabsf(value - threshold) : 0.0f;
      });
      finite = IsFinite(sum) && IsFinite(deviation);
      const float mean_deviation = Mean(deviation, count);
      levels[0] = threshold - mean_deviation;
      levels[1] = threshold + mean_deviation;
    }
    if (!finite) {
      FailColumn(encoding, target, row, threadIdx.x, kThreads);
      return;
    }
    if (threadIdx.x < 2) target.levels[threadIdx.x] = levels[threadIdx.x];
    if (target.residual != nullptr) {
      squares = sum_of([&](float value, int64_t i, bool exists) {
        if (!exists) return 0.0f;
        const float rest = NewResidual(value, CodeOf(value, threshold) ? levels[1] : levels[0]);
        target.residual[i] = rest;
        return rest * rest;
      });
    }
    NextRow(encoding, &target);
  }
  if (threadIdx.x == 0) *target.sum = squares;
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

template <typename Source>
void LaunchEncode(const Source& source, const Encoding& encoding, int64_t first, int64_t end,
                  int64_t longest, cudaStream_t stream, cudaError_t* status) {
  const int64_t blocks = CeilDiv(end - first, kWarps);
  switch (PerLane(longest)) {
    case 4:
      return Launch(stream, blocks, kThreads, status, EncodeColumns<Source, 4>, source, encoding,
                    first, end);
    case 16:
      return Launch(stream, blocks, kThreads, status, EncodeColumns<Source, 16>, source, encoding,
                    first, end);
    case 32:
      return Launch(stream, blocks, kThreads, status, EncodeColumns<Source, 32>, source, encoding,
                    first, end);
    default:
      return Launch(stream, end - first, kThreads, status, EncodeLongColumns<Source>, source,
                    encoding, first);
  }
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
