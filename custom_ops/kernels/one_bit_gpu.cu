// The one-bit kernels on a GPU.
//
// Time goes to memory: encoding reads a gradient and its residual once, and writes the residual and
// a bit. A warp has a whole column in its registers. As in a word of codes, its threads hold 32
// values side by side. So a ballot is a word, and sums are in the order of lib/lanes.h. Columns
// that are too long for the registers are read again, by then from the cache.

#include "kernels/one_bit_gpu.h"

#include <algorithm>

#include "kernels/gpu.h"

namespace tf_onebit {
namespace gpu {
namespace {

// Memory that encoding hands on to FinishEncode: the sum of squares of each column.
struct Scratch {
  double* sums;
  uint32_t* first_failure;  // the first tensor with a value that is not finite

  Scratch(void* memory, int64_t num_columns)
      : sums(static_cast<double*>(memory)),
        first_failure(reinterpret_cast<uint32_t*>(sums + num_columns)) {}
};

// The columns to encode, and their destination. Messages of shards follow each other, beginning
// with `first_shard`. Residuals and sums begin with the first value and column of that shard.
struct Encoding {
  LayoutView layout;
  LevelRule rule;
  float* residual;
  int32_t* messages;
  int64_t message_words, first_shard;
  Scratch scratch;

};

// A column, and the pointers that all threads need to encode it.
struct Target {
  Column column;
  float* residual;
  float* levels;
  uint32_t* codes;
  double* sum;

  __device__ Target(const Encoding& encoding, int64_t index)
      : column(encoding.layout.column(index)) {
    const LayoutView& layout = encoding.layout;
    const int64_t shard = layout.shard_of(index);
    int32_t* const message =
        encoding.messages + (shard - encoding.first_shard) * encoding.message_words;
    const ShardStart& first = layout.shards[encoding.first_shard];
    residual = encoding.residual == nullptr ? nullptr
                                            : encoding.residual + column.value - first.value;
    levels = reinterpret_cast<float*>(message + layout.levels_of(index, shard));
    codes = reinterpret_cast<uint32_t*>(message + layout.codes_of(column, shard));
    sum = encoding.scratch.sums + index - first.column;
  }
};

// The sources of values to encode. For a column, At(i) is value i. `data`, if there is one, points
// to all values.

template <typename T>
struct Gradients {
  static constexpr bool kInMemory = true;
  TensorPointers<const T*> tensors;
  int first_tensor;

  struct Values {
    const T* data;
    __device__ float At(int64_t i) const { return ToFloat(data[i]); }
  };
  __device__ Values Of(const LayoutView&, int64_t, const Column& column) const {
    return {tensors.at[column.tensor - first_tensor] + column.offset};
  }
};

struct Aggregate {
  static constexpr bool kInMemory = true;
  const float* aggregate;
  int64_t first_value;

  struct Values {
    const float* data;
    __device__ float At(int64_t i) const { return data[i]; }
  };
  __device__ Values Of(const LayoutView&, int64_t, const Column& column) const {
    return {aggregate + column.value - first_value};
  }
};

struct Messages {
  static constexpr bool kInMemory = false;
  const int32_t* messages;
  int64_t rank;

  struct Values {
    const int32_t *levels, *codes;  // of the first message
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
  };
  __device__ Values Of(const LayoutView& layout, int64_t index, const Column& column) const {
    return {messages + layout.levels_of(index, rank), messages + layout.codes_of(column, rank),
            layout.worker_message_words(), layout.num_shards};
  }
};

// corrected = value + residual
template <typename Source, int kPerLane>
__device__ void LoadCorrected(const typename Source::Values& values, const Target& target,
                              float* staged, WarpValues<kPerLane>* corrected) {
  const int64_t count = target.column.count;
  if constexpr (Source::kInMemory) {
    corrected->Load(values.data, target.residual, count, staged);
  } else {
#pragma unroll
    for (int m = 0; m < kPerLane; ++m) {
      const int64_t i = m * kWarpSize + LaneOfThread();
      float value = i < count ? values.At(i) : 0.0f;
      if (i < count && target.residual != nullptr) value += target.residual[i];
      corrected->at[m] = value;
    }
  }
}

// Calls work(value, whether it exists) for all values of a column. Stores the ballots of its
// results as the column's codes. Returns how many codes are 1.
template <int kPerLane, typename Work>
__device__ int Encode(const WarpValues<kPerLane>& values, int64_t count, uint32_t* codes,
                      const Work& work) {
  const int lane = LaneOfThread();
  const int64_t words = NumWords(count);
  uint32_t mine = 0;
  int ones = 0;
#pragma unroll
  for (int m = 0; m < kPerLane; ++m) {
    const uint32_t word = __ballot_sync(kWholeWarp, work(values.at[m], m * kWarpSize + lane < count));
    ones += __popc(word);
    if (m % kWarpSize == lane) mine = word;
    if (m % kWarpSize == kWarpSize - 1 || m == kPerLane - 1) {
      const int at = m / kWarpSize * kWarpSize + lane;
      if (at <= m && at < words) codes[at] = mine;
    }
  }
  return ones;
}

// Sends a column as zeros, and keeps its residual.
__device__ void FailColumn(const Encoding& encoding, const Target& target, int thread,
                           int threads) {
  for (int64_t i = thread; i < NumWords(target.column.count); i += threads) target.codes[i] = 0;
  if (thread == 0) {
    target.levels[0] = target.levels[1] = 0.0f;
    *target.sum = 0.0;
    atomicMin(encoding.scratch.first_failure, static_cast<uint32_t>(target.column.tensor));
  }
}

// Encodes the columns [first, end), of at most 32 * kPerLane values each. A warp encodes one
// column.
template <typename Source, int kPerLane>
__global__ __launch_bounds__(kThreads) void EncodeColumns(const __grid_constant__ Source source,
                                                          const __grid_constant__ Encoding encoding,
                                                          int64_t first, int64_t end) {
  __shared__ Staging<kPerLane, kWarps> staging;
  float* const staged = staging.OfWarp();
  const int64_t index = first + static_cast<int64_t>(blockIdx.x) * kWarps + WarpOfThread();
  if (index >= end) return;
  const Target target(encoding, index);
  const int64_t count = target.column.count;

  WarpValues<kPerLane> corrected;
  LoadCorrected<Source>(source.Of(encoding.layout, index, target.column), target, staged,
                        &corrected);

  float threshold, levels[2];
  bool finite;
  if (encoding.rule == LevelRule::kMean) {
    float below = 0, above = 0;
    const int ones = Encode(corrected, count, target.codes, [&](float value, bool exists) {
      const bool code = exists && CodeOf(value, 0.0f);
      if (code) above += value;
      if (exists && !code) below += value;
      return code;
    });
    below = WarpSum(below);
    above = WarpSum(above);
    finite = IsFinite(below) && IsFinite(above);
    threshold = 0.0f;
    levels[0] = Mean(below, count - ones);
    levels[1] = Mean(above, ones);
  } else {
    float sum = 0, deviation = 0;
#pragma unroll
    for (int m = 0; m < kPerLane; ++m) {
      if (m * kWarpSize + LaneOfThread() < count) sum += corrected.at[m];
    }
    sum = WarpSum(sum);
    threshold = Mean(sum, count);
    Encode(corrected, count, target.codes, [&](float value, bool exists) {
      if (exists) deviation += fabsf(value - threshold);
      return exists && CodeOf(value, threshold);
    });
    deviation = WarpSum(deviation);
    finite = IsFinite(sum) && IsFinite(deviation);
    const float mean_deviation = Mean(deviation, count);
    levels[0] = threshold - mean_deviation;
    levels[1] = threshold + mean_deviation;
  }
  if (!finite) {
    __syncwarp();  // other threads than before store the codes
    FailColumn(encoding, target, LaneOfThread(), kWarpSize);
    return;
  }
  if (LaneOfThread() < 2) target.levels[LaneOfThread()] = levels[LaneOfThread()];
  float squares = 0;
  if (target.residual != nullptr) {
#pragma unroll
    for (int m = 0; m < kPerLane; ++m) {
      const float value = corrected.at[m];
      const float rest = NewResidual(value, CodeOf(value, threshold) ? levels[1] : levels[0]);
      if (m * kWarpSize + LaneOfThread() < count) squares += rest * rest;
      corrected.at[m] = rest;
    }
    corrected.Store(target.residual, count, staged);
    squares = WarpSum(squares);
  }
  if (LaneOfThread() == 0) *target.sum = squares;
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
  const Target target(encoding, index);
  const int64_t count = target.column.count;
  const auto values = source.Of(encoding.layout, index, target.column);
  const auto corrected = [&](int64_t i) {
    const float value = values.At(i);
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
    FailColumn(encoding, target, threadIdx.x, kThreads);
    return;
  }
  if (threadIdx.x < 2) target.levels[threadIdx.x] = levels[threadIdx.x];
  double squares = 0;
  if (target.residual != nullptr) {
    squares = sum_of([&](float value, int64_t i, bool exists) {
      if (!exists) return 0.0f;
      const float rest = NewResidual(value, CodeOf(value, threshold) ? levels[1] : levels[0]);
      target.residual[i] = rest;
      return rest * rest;
    });
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
    atomicMin(encoding.scratch.first_failure, static_cast<uint32_t>(runs[run].tensor));
  }
  float* const messages = reinterpret_cast<float*>(encoding.messages + layout.plain_at + i);
  for (int64_t k = 0; k < layout.num_shards; ++k) messages[k * encoding.message_words] = value;
}

// Adds up the sums of `num_columns` columns in block 0. Block 1 + k writes the flag of message k,
// and zeroes the rest of it behind levels and codes. Shards differ by a column.
__global__ __launch_bounds__(kManyLanes) void FinishEncode(
    const __grid_constant__ Encoding encoding, int64_t num_columns, float* sum_of_squares) {
  const int thread = static_cast<int>(threadIdx.x);
  if (blockIdx.x == 0) {
    const double sum = SumOfManyOnBlock(encoding.scratch.sums, num_columns);
    if (thread == 0) *sum_of_squares = static_cast<float>(sum);
    return;
  }
  const LayoutView& layout = encoding.layout;
  const int64_t row = blockIdx.x - 1;
  const ShardStart* const shard = layout.shards + encoding.first_shard + row;
  int32_t* const message = encoding.messages + row * encoding.message_words;
  const int64_t levels_end = layout.levels_at + 2 * (shard[1].column - shard[0].column);
  const int64_t codes_end = layout.codes_at + shard[1].word - shard[0].word;
  for (int64_t i = levels_end + thread; i < layout.codes_at; i += kManyLanes) message[i] = 0;
  for (int64_t i = codes_end + thread; i < layout.plain_at; i += kManyLanes) message[i] = 0;
  const uint32_t failure = *encoding.scratch.first_failure;
  if (thread == 0) message[0] = failure == kNoFailure ? 0 : static_cast<int32_t>(1 + failure);
}

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

// A thread decodes four values at a time, and a warp 512 in a row.
constexpr int kDecodeVectors = 4;
constexpr int64_t kDecodeRun = int64_t{kDecodeVectors} * 4 * kWarpSize;

// Calls work(first value, vector) for each group of four values that a thread has in a run.
template <typename Work>
__device__ void ForVectors(int64_t begin, int64_t count, const Work& work) {
#pragma unroll
  for (int v = 0; v < kDecodeVectors; ++v) {
    const int64_t i = begin + (v * kWarpSize + LaneOfThread()) * 4;
    if (i < count) work(i, v);
  }
}

__global__ __launch_bounds__(kThreads) void DecodeSumColumns(
    const __grid_constant__ LayoutView layout, int64_t rank, const int32_t* messages,
    float* aggregate) {
  const ShardStart& shard = layout.shards[rank];
  const int64_t index =
      shard.column + static_cast<int64_t>(blockIdx.x) * kWarps + WarpOfThread();
  if (index >= layout.shards[rank + 1].column) return;
  const Column column = layout.column(index);
  const int64_t stride = layout.worker_message_words();
  const int32_t* const levels = messages + layout.levels_of(index, rank);
  const uint32_t* const codes =
      reinterpret_cast<const uint32_t*>(messages + layout.codes_of(column, rank));
  float* const out = aggregate + column.value - shard.value;
  const bool aligned = IsAligned(out);
  for (int64_t begin = 0; begin < column.count; begin += kDecodeRun) {
    float sums[kDecodeVectors][4] = {};
    for (int64_t k = 0; k < layout.num_shards; ++k) {
      const float zero = FloatOf(static_cast<uint32_t>(levels[k * stride]));
      const float one = FloatOf(static_cast<uint32_t>(levels[k * stride + 1]));
      ForVectors(begin, column.count, [&](int64_t i, int v) {
        const uint32_t bits = codes[k * stride + i / kWordBits] >> (i % kWordBits);
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[v][j] += bits >> j & 1 ? one : zero;
      });
    }
    ForVectors(begin, column.count, [&](int64_t i, int v) {
      Store4(sums[v], column.count - i, aligned, out + i);
    });
  }
}

template <typename T>
__global__ __launch_bounds__(kThreads) void DecodeColumns(
    const __grid_constant__ TensorPointers<T*> tensors, const __grid_constant__ LayoutView layout,
    int first_tensor, const int32_t* messages, float scale, int64_t first, int64_t end) {
  const int64_t index = first + static_cast<int64_t>(blockIdx.x) * kWarps + WarpOfThread();
  if (index >= end) return;
  const Column column = layout.column(index);
  const int64_t shard = layout.shard_of(index);
  const int32_t* const message = messages + shard * layout.shard_message_words();
  const int32_t* const levels = message + layout.levels_of(index, shard);
  const uint32_t* const codes =
      reinterpret_cast<const uint32_t*>(message + layout.codes_of(column, shard));
  const T zero = FromFloat<T>(scale * FloatOf(static_cast<uint32_t>(levels[0])));
  const T one = FromFloat<T>(scale * FloatOf(static_cast<uint32_t>(levels[1])));
  T* const out = tensors.at[column.tensor - first_tensor] + column.offset;
  const bool aligned = IsAligned(out);
  for (int64_t begin = 0; begin < column.count; begin += kDecodeRun) {
    ForVectors(begin, column.count, [&](int64_t i, int) {
      const uint32_t bits = codes[i / kWordBits] >> (i % kWordBits);
      T values[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) values[j] = bits >> j & 1 ? one : zero;
      Store4(values, column.count - i, aligned, out + i);
    });
  }
}

template <typename T>
__global__ __launch_bounds__(kThreads) void DecodePlain(
    const __grid_constant__ TensorPointers<T*> tensors, const __grid_constant__ LayoutView layout,
    const float* plain, float scale, int64_t first_run, int64_t num_runs) {
  const PlainRun* const runs = layout.plain_runs + first_run;
  const PlainRun& last = runs[num_runs - 1];
  const int64_t i = runs[0].first + static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= last.first + last.size) return;
  const int64_t run = LastBy(i, runs, num_runs, &PlainRun::first);
  tensors.at[run][i - runs[run].first] = FromFloat<T>(plain[i] * scale);
}

// A run of columns [first, end) that a kernel takes at once.
struct ColumnRun {
  int64_t first, end, longest;
  int first_tensor, end_tensor;
};

// Calls work(run) for runs of all columns of a layout. The tensors of a run fit into a launch.
// `same_kind` compares two column sizes, and all columns of a run are of one kind.
template <typename SameKind, typename Work>
void ForColumnRuns(const Layout& layout, const SameKind& same_kind, const Work& work) {
  ColumnRun run{0, 0, 0, 0, 0};
  const LayoutView view = layout.view();
  for (int64_t c = 0; c < view.num_cuts; ++c) {
    const Cut& cut = view.cuts[c];
    const int tensor = static_cast<int>(cut.tensor);
    if (run.end > run.first && (tensor - run.first_tensor >= kTensorsPerLaunch ||
                                !same_kind(run.longest, cut.column_size))) {
      work(run);
      run.first = run.end;
    }
    if (run.end == run.first) {
      run.first_tensor = tensor;
      run.longest = 0;
    }
    run.longest = std::max(run.longest, cut.column_size);
    run.end = c + 1 < view.num_cuts ? view.cuts[c + 1].first_column : layout.num_columns();
    run.end_tensor = tensor + 1;
  }
  if (run.end > run.first) work(run);
}

template <typename T, typename Pointers>
TensorPointers<T*> PointersOf(const Pointers& gradients, int first, int end) {
  TensorPointers<T*> pointers = {};
  for (int t = first; t < end; ++t) pointers.at[t - first] = static_cast<T*>(gradients[t]);
  return pointers;
}

// Calls work(pointers, first run, number of runs, number of values) for all plain tensors.
template <typename T, typename Pointers, typename Work>
void ForPlainRuns(const Layout& layout, const Pointers& gradients, const Work& work) {
  const std::vector<PlainRun>& runs = layout.plain_runs();
  for (size_t first = 0; first < runs.size(); first += kTensorsPerLaunch) {
    const size_t end = std::min(runs.size(), first + kTensorsPerLaunch);
    TensorPointers<T*> pointers = {};
    for (size_t r = first; r < end; ++r) {
      pointers.at[r - first] = static_cast<T*>(gradients[runs[r].tensor]);
    }
    const int64_t values = runs[end - 1].first + runs[end - 1].size - runs[first].first;
    work(pointers, static_cast<int64_t>(first), static_cast<int64_t>(end - first), values);
  }
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
                    int32_t* messages, int64_t message_words, int64_t first_shard,
                    int64_t num_columns, void* scratch_memory, cudaStream_t stream,
                    cudaError_t* status) {
  const Scratch scratch(scratch_memory, num_columns);
  *status = cudaMemsetAsync(scratch.first_failure, 0xFF, sizeof(*scratch.first_failure), stream);
  return {layout.layout.view(layout.table), quantizer.rule, quantizer.residual, messages,
          message_words,                    first_shard,    scratch};
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
  const auto same_kernel = [](int64_t a, int64_t b) { return PerLane(a) == PerLane(b); };
  ForColumnRuns(layout.layout, same_kernel, [&](const ColumnRun& run) {
    const int64_t first = std::max(run.first, begin), last = std::min(run.end, end);
    if (first < last) {
      LaunchEncode(source, encoding, first, last, run.longest, stream, &status);
    }
  });
  Launch(stream, 2, kManyLanes, &status, FinishEncode, encoding, num_columns,
         quantizer.sum_of_squares);
  return TextOf(status);
}

void LaunchSumPlain(const DeviceLayout& layout, const int32_t* messages, float* plain,
                    cudaStream_t stream, cudaError_t* status) {
  Launch(stream, CeilDiv(layout.layout.plain_size(), kThreads), kThreads, status, SumPlain,
         layout.layout.view(layout.table), messages, plain);
}

}  // namespace

int64_t OneBitScratchBytes(int64_t num_columns) {
  return (num_columns + 1) * static_cast<int64_t>(sizeof(double));
}

const char* OneBitEncode(const DeviceLayout& layout, FloatType type,
                         const std::vector<const void*>& gradients,
                         const OneBitQuantizer& quantizer, int32_t* messages, void* scratch,
                         void* stream_of_op) {
  const cudaStream_t stream = static_cast<cudaStream_t>(stream_of_op);
  cudaError_t status;
  const Encoding encoding =
      EncodingOf(layout, quantizer, messages, layout.layout.worker_message_words(), 0,
                 layout.layout.num_columns(), scratch, stream, &status);
  WithType(type, [&](auto zero) {
    using T = decltype(zero);
    const auto same_kernel = [](int64_t a, int64_t b) { return PerLane(a) == PerLane(b); };
    ForColumnRuns(layout.layout, same_kernel, [&](const ColumnRun& run) {
      const Gradients<T> source = {
          PointersOf<const T>(gradients, run.first_tensor, run.end_tensor), run.first_tensor};
      LaunchEncode(source, encoding, run.first, run.end, run.longest, stream, &status);
    });
    ForPlainRuns<const T>(layout.layout, gradients, [&](const TensorPointers<const T*>& pointers,
                                                        int64_t first, int64_t runs,
                                                        int64_t values) {
      Launch(stream, CeilDiv(values, kThreads), kThreads, &status, CopyPlain<T>, pointers, encoding,
             first, runs);
    });
  });
  Launch(stream, 1 + layout.layout.num_shards(), kManyLanes, &status, FinishEncode, encoding,
         layout.layout.num_columns(), quantizer.sum_of_squares);
  return TextOf(status);
}

const char* OneBitDecodeSum(const DeviceLayout& layout, int64_t rank, const int32_t* messages,
                            float* aggregate, float* plain, void* stream_of_op) {
  const cudaStream_t stream = static_cast<cudaStream_t>(stream_of_op);
  cudaError_t status = cudaSuccess;
  Launch(stream, CeilDiv(layout.layout.shard_columns(rank), kWarps), kThreads, &status,
         DecodeSumColumns, layout.layout.view(layout.table), rank, messages, aggregate);
  LaunchSumPlain(layout, messages, plain, stream, &status);
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
  const Messages source = {messages, rank};
  const char* const error = EncodeShard(layout, rank, source, quantizer, message, scratch, stream);
  if (error != nullptr) return error;
  cudaError_t status = cudaSuccess;
  LaunchSumPlain(layout, messages, plain, stream, &status);
  return TextOf(status);
}

const char* OneBitDecode(const DeviceLayout& layout, FloatType type, const int32_t* messages,
                         const float* plain, float scale, const std::vector<void*>& gradients,
                         void* stream_of_op) {
  const cudaStream_t stream = static_cast<cudaStream_t>(stream_of_op);
  cudaError_t status = cudaSuccess;
  const LayoutView view = layout.layout.view(layout.table);
  WithType(type, [&](auto zero) {
    using T = decltype(zero);
    const auto all_sizes = [](int64_t, int64_t) { return true; };
    ForColumnRuns(layout.layout, all_sizes, [&](const ColumnRun& run) {
      Launch(stream, CeilDiv(run.end - run.first, kWarps), kThreads, &status, DecodeColumns<T>,
             PointersOf<T>(gradients, run.first_tensor, run.end_tensor), view, run.first_tensor,
             messages, scale, run.first, run.end);
    });
    ForPlainRuns<T>(layout.layout, gradients, [&](const TensorPointers<T*>& pointers, int64_t first,
                                                  int64_t runs, int64_t values) {
      Launch(stream, CeilDiv(values, kThreads), kThreads, &status, DecodePlain<T>, pointers, view,
             plain, scale, first, runs);
    });
  });
  return TextOf(status);
}

}  // namespace gpu
}  // namespace tf_onebit
