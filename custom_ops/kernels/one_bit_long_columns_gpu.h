// The one-bit encoding of columns that are too long for the registers of a warp. For .cu files.

#ifndef TF_ONEBIT_KERNELS_ONE_BIT_LONG_COLUMNS_GPU_H_
#define TF_ONEBIT_KERNELS_ONE_BIT_LONG_COLUMNS_GPU_H_

#include "kernels/one_bit_sources_gpu.h"

namespace tf_onebit {
namespace gpu {
namespace {

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

// Encodes the columns from `first` on, of any length. A block of threads encodes one column. Without
// the bound of 4, nvcc saves so many registers that it spills some.
template <typename Source, typename R>
__global__ __launch_bounds__(kThreads, 4) void EncodeLongColumns(
    const __grid_constant__ Source source, const __grid_constant__ Encoding encoding,
    int64_t first) {
  __shared__ ColumnSums sums;
  const int64_t index = first + blockIdx.x;
  auto target = TargetOf<R>(source, encoding, index, PlaceOf(encoding.layout, index));
  const int64_t count = target.count;
  int row = 0;
  const auto corrected = [&](int64_t i) {
    // Later rows quantize the residual alone. Not 0.0, which would turn -0.0 into another one.
    const float value = row > 0 ? -0.0f : target.values.At(i);
    return target.residual == nullptr ? value : value + ToFloat(target.residual[i]);
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
    // Selected, because an array that a thread's number indexes would be in local memory.
    if (threadIdx.x < 2) target.levels[threadIdx.x] = threadIdx.x == 0 ? levels[0] : levels[1];
    if (target.residual != nullptr) {
      const Dither dither(levels);
      const float zero = levels[0], one = levels[1];
      squares = sum_of([&](float value, int64_t i, bool exists) {
        if (!exists) return 0.0f;
        const float exact = NewResidual(value, CodeOf(value, threshold) ? one : zero);
        const float rest = Stored<R>(exact, dither, i);
        target.residual[i] = Narrowed<R>(rest);
        return rest * rest;
      });
    }
    NextRow(encoding, &target);
  }
  if (threadIdx.x == 0) *target.sum = squares;
}

}  // namespace
}  // namespace gpu
}  // namespace tf_onebit

#endif  // TF_ONEBIT_KERNELS_ONE_BIT_LONG_COLUMNS_GPU_H_
