// What the kernels that encode and decode one-bit messages, and their launches, have in common. For
// .cu files.

#ifndef TF_ONEBIT_KERNELS_ONE_BIT_COMMON_GPU_H_
#define TF_ONEBIT_KERNELS_ONE_BIT_COMMON_GPU_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/gpu.h"
#include "kernels/one_bit_gpu.h"
#include "lib/layout.h"

namespace tf_onebit {
namespace gpu {

// Launches the sum of the plain values of all messages, in the order of ranks.
void LaunchSumPlain(const DeviceLayout& layout, const int32_t* messages, float* plain,
                    cudaStream_t stream, cudaError_t* status);

namespace {

// A column, and where its levels and codes are in the message of its shard.
struct Place {
  Column column;
  int64_t shard, levels, codes;
};

__device__ inline Place PlaceOf(const LayoutView& layout, int64_t index) {
  const Column column = layout.column(index);
  const int64_t shard = layout.shard_of(index);
  return {column, shard, layout.levels_of(index, shard), layout.codes_of(column, shard)};
}

// Finds the places of the columns of a block's warps. Column first + round * kWarps + warp has its
// place at places[round][warp], in shared memory. Each thread finds one, because a search takes as
// long for one thread as for all of a warp.
template <int kRounds>
__device__ void FindPlaces(const LayoutView& layout, int64_t first, int64_t end,
                           Place (&places)[kRounds][kWarps]) {
  static_assert(kRounds * kWarps <= kThreads);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t index = first + thread;
  if (thread < kRounds * kWarps && index < end) {
    places[thread / kWarps][thread % kWarps] = PlaceOf(layout, index);
  }
  __syncthreads();
}

// Calls work(place, read(place)) for the columns [first, end). A block of threads has
// kRounds * kWarps columns. Each warp reads for all of its columns first, to wait only once.
template <int kRounds, typename Read, typename Work>
__device__ void ForPlaces(const LayoutView& layout, int64_t first, int64_t end, const Read& read,
                          const Work& work) {
  __shared__ Place places[kRounds][kWarps];
  const int warp = WarpOfThread();
  first += static_cast<int64_t>(blockIdx.x) * (kRounds * kWarps);
  FindPlaces(layout, first, end, places);
  decltype(read(places[0][warp])) of_rounds[kRounds];
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    if (first + round * kWarps + warp < end) of_rounds[round] = read(places[round][warp]);
  }
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    if (first + round * kWarps + warp < end) work(places[round][warp], of_rounds[round]);
  }
}

// Codes and levels of a span of 32 * kWords values in the messages of some workers. A warp has them
// in shared memory. So it reads each word once, all at the same time.
template <int kWords>
struct StagedMessages {
  static constexpr int kMessages = 8;
  static constexpr int kAtOnce = kWarpSize / kWords;  // messages that a warp reads in one load
  static_assert(kMessages % kAtOnce == 0 && 2 * kMessages <= kWarpSize);
  uint4 words[kMessages][kWords / 4];
  float levels[kMessages][2];

  // Returns how many of the messages that are left are staged at once.
  __device__ static int OfChunk(int64_t left) {
    return static_cast<int>(left < kMessages ? left : kMessages);
  }

  // What a thread has read of them.
  struct OfThread {
    uint32_t words[kMessages / kAtOnce];
    float level;
  };

  // Reads the first kMessages of the `count` messages that are left, and of each the codes of
  // `num_values` values. The pointers are to the levels and codes of the first message. A message
  // is `stride` words behind the one before.
  __device__ static OfThread Read(const int32_t* levels, const uint32_t* codes, int64_t stride,
                                  int64_t count, int64_t num_values) {
    const int lane = LaneOfThread(), word = lane % kWords;
    codes += lane / kWords * stride + word;
    const int64_t left = word * kWordBits < num_values ? count - lane / kWords : 0;
    OfThread mine;
#pragma unroll
    for (int i = 0; i < kMessages / kAtOnce; ++i, codes += kAtOnce * stride) {
      mine.words[i] = i * kAtOnce < left ? *codes : 0;
    }
    const bool has_level = lane < 2 * kMessages && lane / 2 < count;
    mine.level = FloatOf(has_level ? levels[lane / 2 * stride + lane % 2] : 0);
    return mine;
  }

  // Shows what all threads have read to the warp.
  __device__ void Put(const OfThread& mine) {
    const int lane = LaneOfThread();
    __syncwarp();  // until no thread needs the messages before
#pragma unroll
    for (int i = 0; i < kMessages / kAtOnce; ++i) {
      (&words[0][0].x)[i * kWarpSize + lane] = mine.words[i];
    }
    if (lane < 2 * kMessages) levels[lane / 2][lane % 2] = mine.level;
    __syncwarp();
  }
};

// A run of columns [first, end) that a kernel takes at once.
struct ColumnRun {
  int64_t first, end, longest;
  int first_tensor, end_tensor;
};

// Calls work(run) for runs of all columns of a layout. The tensors of a run fit into a launch.
// `kind_of` tells the kind of a column by its size, and all columns of a run are of one kind.
template <typename KindOf, typename Work>
void ForColumnRuns(const Layout& layout, const KindOf& kind_of, const Work& work) {
  ColumnRun run{0, 0, 0, 0, 0};
  const LayoutView view = layout.view();
  for (int64_t c = 0; c < view.num_cuts; ++c) {
    const Cut& cut = view.cuts[c];
    const int tensor = static_cast<int>(cut.tensor);
    if (run.end > run.first && (tensor - run.first_tensor >= kTensorsPerLaunch ||
                                kind_of(run.longest) != kind_of(cut.column_size))) {
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

}  // namespace
}  // namespace gpu
}  // namespace tf_onebit

#endif  // TF_ONEBIT_KERNELS_ONE_BIT_COMMON_GPU_H_
