// The encoding of threshold messages on a GPU.
//
// It reads a gradient and its residual once, and writes the residual. The place of a code in
// a message depends on how many codes come before it. So a first kernel marks the values above the
// threshold with a bit each, and a second counts them. A third kernel reads only the bits, and
// writes the codes in the order of their indices.

#include "kernels/gpu.h"
#include "kernels/threshold_gpu.h"
#include "kernels/threshold_tensors_gpu.h"

namespace tf_onebit {
namespace gpu {
namespace {

// Memory that the kernels of one encoding hand on. For each block it has the sum of squares of its
// residual, the number of values above the threshold, and that number in the blocks before. For
// each value it has a bit for above the threshold, and one for negative values. The latter are
// valid only in words with values above the threshold. The words of a block begin at a multiple of
// 16 bytes, if the memory does.
struct Scratch {
  static constexpr int64_t kWordsPerBlock = kBlockSize / kWordBits;

  double* squares;
  uint32_t *counts, *before;
  uint32_t *exceeding, *negative;
  uint32_t* first_failure;  // the first tensor with a value that is not finite

  Scratch(void* memory, int64_t blocks)
      : squares(static_cast<double*>(memory)),
        counts(reinterpret_cast<uint32_t*>(squares + blocks)),
        before(counts + blocks),
        exceeding(before + blocks),
        negative(exceeding + blocks * kWordsPerBlock),
        first_failure(negative + blocks * kWordsPerBlock) {}

  static int64_t Bytes(int64_t blocks) {
    return blocks * (sizeof(double) + (2 + 2 * kWordsPerBlock) * sizeof(uint32_t)) +
           sizeof(uint32_t);
  }
};

// A warp has a block of values, and takes a piece of them at a time.
constexpr int kPerLane = 16;
constexpr int kPiece = kPerLane * kWarpSize;

// What a thread has summed up of a block.
struct BlockSums {
  float squares = 0;
  uint32_t count = 0;  // the same on all threads of a warp
  bool all_finite = true;
};

// Encodes a piece. Its bits go to `exceeding` and `negative`.
template <typename T, typename Existing>
__device__ void EncodePiece(const T* gradients, const Existing& existing, float threshold,
                            float magnitude, float decay, float* residuals, uint32_t* exceeding,
                            uint32_t* negative, BlockSums* sums) {
  const int lane = LaneOfThread();
  WarpValues<kPerLane> values, unsent;
  values.Load(gradients, existing);
  unsent.Load(residuals, existing);
#pragma unroll
  for (int m = 0; m < kPerLane; ++m) values.at[m] += decay * unsent.at[m];
  uint32_t exceeding_word = 0, negative_word = 0;  // for this lane's word
#pragma unroll
  for (int m = 0; m < kPerLane; ++m) {
    const int i = values.ValueOf(m);
    const float corrected = values.at[m];
    const bool finite = IsFinite(corrected), is_negative = corrected < 0;
    const bool exceeds = existing.Has(i) && finite && fabsf(corrected) > threshold;
    const float rest = corrected - (is_negative ? -magnitude : magnitude);
    float kept = exceeds ? rest : corrected;
    if (!finite) {
      sums->all_finite = false;
      kept = unsent.at[m];  // the gradient is left out
    }
    values.at[m] = kept;
    if (existing.Has(i)) sums->squares += kept * kept;
    const uint32_t exceeding_ballot = __ballot_sync(kWholeWarp, exceeds);
    const uint32_t negative_ballot = __ballot_sync(kWholeWarp, is_negative);
    if (lane == m) {
      exceeding_word = exceeding_ballot;
      negative_word = negative_ballot;
    }
    sums->count += __popc(exceeding_ballot);
  }
  values.Store(existing, residuals);
  if (lane < kPerLane) {
    exceeding[lane] = exceeding_word;
    if (exceeding_word != 0) negative[lane] = negative_word;
  }
}

template <typename T>
__global__ __launch_bounds__(kThreads) void EncodeBlocks(
    const __grid_constant__ TensorPointers<const T*> tensors, const __grid_constant__ PartsView parts,
    const __grid_constant__ Scratch scratch, int64_t first_tensor, int64_t first, int64_t end,
    float* residual, const float* threshold_input, const float* magnitude_input, float decay) {
  const int64_t index = first + static_cast<int64_t>(blockIdx.x) * kWarps + WarpOfThread();
  if (index >= end) return;
  const Block block = parts.block(index);
  const T* const gradients = tensors.at[block.tensor - first_tensor] + block.offset;
  float* const residuals = residual + block.value;
  uint32_t* const exceeding = scratch.exceeding + index * Scratch::kWordsPerBlock;
  uint32_t* const negative = scratch.negative + index * Scratch::kWordsPerBlock;
  const float threshold = *threshold_input, magnitude = *magnitude_input;
  const int count = static_cast<int>(block.count);

  BlockSums sums;
  for (int begin = 0; begin < count; begin += kPiece) {
    WithExisting<kPiece>(count - begin, [&](const auto& existing) {
      EncodePiece(gradients + begin, existing, threshold, magnitude, decay, residuals + begin,
                  exceeding + begin / kWordBits, negative + begin / kWordBits, &sums);
    });
  }
  const float squares = WarpSum(sums.squares);
  const bool failed = __ballot_sync(kWholeWarp, !sums.all_finite) != 0;
  if (LaneOfThread() == 0) {
    scratch.squares[index] = squares;
    scratch.counts[index] = sums.count;
    if (failed) atomicMin(scratch.first_failure, static_cast<uint32_t>(block.tensor));
  }
}

// Returns the sum of the values of a warp's threads up to this one.
__device__ uint32_t SumUpToLane(uint32_t value) {
#pragma unroll
  for (int width = 1; width < kWarpSize; width *= 2) {
    const uint32_t lower = __shfl_up_sync(kWholeWarp, value, width);
    if (LaneOfThread() >= width) value += lower;
  }
  return value;
}

// Counts the codes before each block of a part, and writes the counts of the header. A block of
// threads has a part, and takes kRounds blocks of values for each of its threads at once.
__global__ __launch_bounds__(kManyLanes, 1) void CountBefore(
    const __grid_constant__ PartsView parts, const __grid_constant__ Scratch scratch,
    int64_t capacity, int32_t* message) {
  constexpr int kRounds = 16;
  static_assert(kManyLanes == kWarpSize * kWarpSize);
  __shared__ uint32_t of_warps[kRounds][kWarpSize];
  const int lane = LaneOfThread(), warp = WarpOfThread();
  const PartStart* const part = parts.parts + blockIdx.x;
  uint32_t before = 0;
  for (int64_t begin = part[0].block; begin < part[1].block; begin += kRounds * kManyLanes) {
    const int64_t first = begin + threadIdx.x;
    uint32_t counts[kRounds], up_to_lane[kRounds];
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int64_t index = first + r * kManyLanes;
      counts[r] = index < part[1].block ? scratch.counts[index] : 0;
    }
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      up_to_lane[r] = SumUpToLane(counts[r]);
      if (lane == kWarpSize - 1) of_warps[r][warp] = up_to_lane[r];
    }
    __syncthreads();
    if (warp < kRounds) of_warps[warp][lane] = SumUpToLane(of_warps[warp][lane]);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int64_t index = first + r * kManyLanes;
      const uint32_t before_warp = warp == 0 ? 0 : of_warps[r][warp - 1];
      if (index < part[1].block) {
        scratch.before[index] = before + before_warp + up_to_lane[r] - counts[r];
      }
      before += of_warps[r][kWarpSize - 1];
    }
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  const uint32_t sent = before < capacity ? before : static_cast<uint32_t>(capacity);
  int32_t* const header = message + blockIdx.x * (kHeaderWords + capacity);
  header[kWordsWord] = static_cast<int32_t>(kHeaderWords + sent);
  header[kCountWord] = static_cast<int32_t>(sent);
  header[kExceedingWord] = static_cast<int32_t>(before);
}

// Reads four words in a row, whose place is a multiple of 16 bytes.
__device__ void LoadFour(const uint32_t* from, uint32_t (&to)[4]) {
  const uint4 bits = *reinterpret_cast<const uint4*>(from);
  memcpy(to, &bits, sizeof(bits));
}

// Writes the codes of values above the threshold. Values that do not fit go back to the residual.
__global__ __launch_bounds__(kThreads) void WriteCodes(const __grid_constant__ PartsView parts,
                                                       const __grid_constant__ Scratch scratch,
                                                       float* residual,
                                                       const float* magnitude_input,
                                                       int64_t capacity, int32_t* message) {
  const int lane = LaneOfThread();
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + WarpOfThread();
  if (index >= parts.num_blocks || scratch.counts[index] == 0) return;
  const Block block = parts.block(index);
  const uint32_t first_index = static_cast<uint32_t>(block.value - parts.parts[block.part].value);
  uint32_t* const codes =
      reinterpret_cast<uint32_t*>(message + block.part * (kHeaderWords + capacity) + kHeaderWords);
  const float magnitude = *magnitude_input;
  // A thread has four words in a row.
  static_assert(Scratch::kWordsPerBlock == 4 * kWarpSize);
  const int64_t in_scratch = index * Scratch::kWordsPerBlock + 4 * lane;
  uint32_t exceeding[4], negative[4] = {};
  LoadFour(scratch.exceeding + in_scratch, exceeding);
  int count = 0;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    if ((4 * lane + w) * kWordBits >= block.count) exceeding[w] = 0;
    count += __popc(exceeding[w]);
  }
  if (count != 0) LoadFour(scratch.negative + in_scratch, negative);
  int64_t mine = scratch.before[index] + SumUpToLane(count) - count;
  bool fits = true;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    for (uint32_t left = exceeding[w]; left != 0; left &= left - 1, ++mine) {
      const int bit = __ffs(left) - 1;
      const uint32_t in_block = static_cast<uint32_t>((4 * lane + w) * kWordBits + bit);
      const uint32_t code = (first_index + in_block) | (negative[w] >> bit << 31);
      if (mine < capacity) {
        codes[mine] = code;
      } else {
        residual[block.value + in_block] += SignedStep(code, magnitude);
        fits = false;
      }
    }
  }
  if (__ballot_sync(kWholeWarp, !fits) == 0) return;
  __syncwarp();  // other threads of the warp have written the residual
  float squares = 0;
  for (int64_t i = lane; i < block.count; i += kWarpSize) {
    const float kept = residual[block.value + i];
    squares += kept * kept;
  }
  squares = WarpSum(squares);
  if (lane == 0) scratch.squares[index] = squares;
}

// Writes the rest of the headers. A block of threads has a part.
__global__ __launch_bounds__(kManyLanes, 1) void FinishEncode(
    const __grid_constant__ PartsView parts, const __grid_constant__ Scratch scratch,
    const float* step, int64_t capacity, int32_t* message) {
  const PartStart* const part = parts.parts + blockIdx.x;
  const double squares =
      SumOfManyOnBlock(scratch.squares + part[0].block, part[1].block - part[0].block);
  if (threadIdx.x != 0) return;
  int32_t* const header = message + blockIdx.x * (kHeaderWords + capacity);
  const uint32_t failure = *scratch.first_failure;
  header[kFlagWord] = failure == kNoFailure ? 0 : static_cast<int32_t>(1 + failure);
  header[kStepWord] = static_cast<int32_t>(BitsOf(*step));
  header[kSquaresWord] = static_cast<int32_t>(BitsOf(static_cast<float>(squares)));
}

}  // namespace

int64_t ThresholdScratchBytes(const Parts& parts) { return Scratch::Bytes(parts.num_blocks()); }

const char* ThresholdEncode(const DeviceParts& parts, FloatType type,
                            const std::vector<const void*>& gradients, float* residual,
                            const float* threshold, const float* magnitude, const float* step,
                            float decay, int64_t capacity, int32_t* message, void* scratch_memory,
                            void* stream_of_op) {
  const cudaStream_t stream = static_cast<cudaStream_t>(stream_of_op);
  const PartsView view = parts.parts.view(parts.table);
  const Scratch scratch(scratch_memory, view.num_blocks);
  cudaError_t status =
      cudaMemsetAsync(scratch.first_failure, 0xFF, sizeof(*scratch.first_failure), stream);
  if (status == cudaSuccess) {
    const int64_t words = view.num_parts * (kHeaderWords + capacity);
    status = cudaMemsetAsync(message, 0, words * sizeof(*message), stream);
  }
  WithType(type, [&](auto zero) {
    using T = decltype(zero);
    ForTensors<const T>(parts.parts, gradients, [&](const TensorPointers<const T*>& pointers,
                                                    int64_t first_tensor, int64_t, int64_t first,
                                                    int64_t end) {
      Launch(stream, CeilDiv(end - first, kWarps), kThreads, &status, EncodeBlocks<T>, pointers,
             view, scratch, first_tensor, first, end, residual, threshold, magnitude, decay);
    });
  });
  Launch(stream, view.num_parts, kManyLanes, &status, CountBefore, view, scratch, capacity,
         message);
  Launch(stream, CeilDiv(view.num_blocks, kWarps), kThreads, &status, WriteCodes, view, scratch,
         residual, magnitude, capacity, message);
  Launch(stream, view.num_parts, kManyLanes, &status, FinishEncode, view, scratch, step, capacity,
         message);
  return TextOf(status);
}

}  // namespace gpu
}  // namespace tf_onebit
