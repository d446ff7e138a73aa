// What the one-bit encoding on a GPU reads and writes: sources of values, and messages. For .cu
// files.

#ifndef TF_ONEBIT_KERNELS_ONE_BIT_SOURCES_GPU_H_
#define TF_ONEBIT_KERNELS_ONE_BIT_SOURCES_GPU_H_

#include "kernels/gpu.h"
#include "kernels/one_bit_common_gpu.h"
#include "kernels/one_bit_gpu.h"

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
  FloatType residual_type;
  void* residual;
  int32_t* messages;
  int64_t row_words, first_shard;
  Scratch scratch;
};

// A column to encode. Values says where its values come from, and R is the type of its residual. The
// levels and codes are those of the first row.
template <typename Values, typename R>
struct Target {
  Values values;
  int64_t count;
  int tensor;
  R* residual;
  float* levels;
  uint32_t* codes;
  double* sum;
};

template <typename R, typename Source>
__device__ Target<typename Source::Values, R> TargetOf(const Source& source,
                                                       const Encoding& encoding, int64_t index,
                                                       const Place& place) {
  const ShardStart& first = encoding.layout.shards[encoding.first_shard];
  const int64_t row = (place.shard - encoding.first_shard) * encoding.bits;
  int32_t* const message = encoding.messages + row * encoding.row_words;
  const int64_t value = place.column.value - first.value;
  return {source.Of(encoding.layout, place),
          place.column.count,
          place.column.tensor,
          encoding.residual == nullptr ? nullptr : static_cast<R*>(encoding.residual) + value,
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
        // Both levels are read, because the choice of one would have to wait for the code.
        const uint32_t word = codes[k * stride + i / kWordBits];
        const int32_t zero = levels[k * stride], one = levels[k * stride + 1];
        sum += FloatOf(static_cast<uint32_t>(word >> (i % kWordBits) & 1 ? one : zero));
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

// Moves the levels and codes of a column to the next row of its message.
template <typename Values, typename R>
__device__ void NextRow(const Encoding& encoding, Target<Values, R>* target) {
  target->levels += encoding.row_words;
  target->codes += encoding.row_words;
}

// Sends the rows of a column from `first` on as zeros. `target` is that of row `first`.
template <typename Values, typename R>
__device__ void FailColumn(const Encoding& encoding, Target<Values, R> target, int first,
                           int thread, int threads) {
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

}  // namespace
}  // namespace gpu
}  // namespace tf_onebit

#endif  // TF_ONEBIT_KERNELS_ONE_BIT_SOURCES_GPU_H_
