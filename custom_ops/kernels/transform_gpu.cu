// The kernels of transforms on a GPU: lib/transforms.h for all values.

#include "kernels/transform_gpu.h"

#include "kernels/gpu_tensors.h"
#include "lib/transforms.h"

namespace tf_onebit {
namespace gpu {
namespace {

// A warp has a block of values, and takes a piece of them at a time.
constexpr int kPerLane = 8;  // with 16, nvcc spills registers
constexpr int kPiece = kPerLane * kWarpSize;

__device__ float FiniteOr(float old, float value) { return IsFinite(value) ? value : old; }

// Updates the averages of a piece, and adds standard deviations to *sum.
template <typename Existing>
__device__ void AccumulatePiece(const float* gradient, const Existing& existing, float share,
                                float* average, float* sum) {
  WarpValues<kPerLane> gradients, averages;
  gradients.Load(gradient, existing);
  averages.Load(average, existing);
#pragma unroll
  for (int m = 0; m < kPerLane; ++m) {
    const float old = averages.at[m];
    averages.at[m] = FiniteOr(old, FollowSquares(old, gradients.at[m], share));
    if (existing.Has(averages.ValueOf(m))) *sum += sqrtf(averages.at[m]);
  }
  averages.Store(existing, average);
}

// Updates the averages of a block, and sums up standard deviations in the order of lib/lanes.h.
__global__ __launch_bounds__(kThreads) void AccumulateBlocks(
    const __grid_constant__ PartsView runs, const float* gradient, const double* share_input,
    float* average, double* of_blocks) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + WarpOfThread();
  if (index >= runs.num_blocks) return;
  const Block block = runs.block(index);
  const float share = static_cast<float>(*share_input);
  const int count = static_cast<int>(block.count);
  float sum = 0;
  for (int begin = 0; begin < count; begin += kPiece) {
    const int64_t at = block.value + begin;
    WithExisting<kPiece>(count - begin, [&](const auto& existing) {
      AccumulatePiece(gradient + at, existing, share, average + at, &sum);
    });
  }
  sum = WarpSum(sum);
  if (LaneOfThread() == 0) of_blocks[index] = sum;
}

// Adds up the sums of blocks. A block of threads has a run with values, which is a stripe.
__global__ __launch_bounds__(kManyLanes, 1) void SumRuns(const __grid_constant__ PartsView runs,
                                                      const double* of_blocks, double* sums) {
  const Stripe& run = runs.stripes[blockIdx.x];
  const double sum = SumOfManyOnBlock(of_blocks + run.first_block, CeilDiv(run.count, kBlockSize));
  if (threadIdx.x == 0) sums[run.tensor] = sum;
}

struct Normalize {
  const double* means;
  float epsilon;

  __device__ void operator()(void* const* arrays, int64_t run, int64_t i, int64_t left,
                             bool aligned) const {
    const Normalizer normalizer = NormalizerOf(means[run], epsilon);
    float gradient[4], average[4];
    Load4(static_cast<const float*>(arrays[0]) + i, left, aligned, gradient);
    Load4(static_cast<const float*>(arrays[1]) + i, left, aligned, average);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float relative = sqrtf(average[j]) * normalizer.per_mean;
      gradient[j] = gradient[j] / (relative > normalizer.floor ? relative : normalizer.floor);
    }
    Store4(gradient, left, aligned, static_cast<float*>(arrays[2]) + i);
  }
};

struct MoveOn {
  MomentumRule rule;
  const float* factor;

  __device__ void operator()(void* const* arrays, int64_t, int64_t i, int64_t left,
                             bool aligned) const {
    float* const velocities = static_cast<float*>(arrays[1]) + i;
    float gradient[4], velocity[4], out[4];
    Load4(static_cast<const float*>(arrays[0]) + i, left, aligned, gradient);
    Load4<float>(velocities, left, aligned, velocity);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float given = *factor * gradient[j];
      const float moved = FollowMomentum(velocity[j], given, rule.momentum);
      out[j] = rule.nesterov ? FollowMomentum(moved, given, rule.momentum) : moved;
      velocity[j] = FiniteOr(velocity[j], moved);
    }
    Store4(velocity, left, aligned, velocities);
    Store4(out, left, aligned, static_cast<float*>(arrays[2]) + i);
  }
};

struct Adapt {
  AdamRule rule;
  AdamStepAt at_step;

  __device__ void operator()(void* const* arrays, int64_t, int64_t i, int64_t left,
                             bool aligned) const {
    float* const averages = static_cast<float*>(arrays[1]) + i;
    float* const squares = static_cast<float*>(arrays[2]) + i;
    float gradient[4], average[4], square[4], out[4];
    Load4(static_cast<const float*>(arrays[0]) + i, left, aligned, gradient);
    Load4<float>(averages, left, aligned, average);
    Load4<float>(squares, left, aligned, square);
    const AdamStep step = Read(at_step);
    const float least = LeastOf(rule, step);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float followed = FollowAverage(average[j], gradient[j], rule.share_of_gradient);
      const float now = SquareLessNoise(gradient[j], step.unbias * average[j], step.noise);
      const float unbounded = FollowAverage(square[j], now, rule.share_of_square);
      const float bound = least * (followed * followed);
      const float followed_square = bound > unbounded ? bound : unbounded;
      const bool finite = IsFinite(followed_square);
      const float update = AdamUpdate(step.factor, followed, sqrtf(followed_square), rule.epsilon);
      if (finite) average[j] = followed;
      if (finite) square[j] = followed_square;
      out[j] = finite ? update : nanf("");
    }
    Store4(average, left, aligned, averages);
    Store4(square, left, aligned, squares);
    Store4(out, left, aligned, static_cast<float*>(arrays[3]) + i);
  }
};

}  // namespace

int64_t AdagradScratchBytes(const Parts& runs) { return runs.num_blocks() * sizeof(double); }

const char* AdagradAccumulate(const Parts& runs, const int64_t* table, const float* gradient,
                              const double* share, float* average, double* sums, void* scratch,
                              void* stream_of_op) {
  const cudaStream_t stream = static_cast<cudaStream_t>(stream_of_op);
  const PartsView view = runs.view(table);
  double* const of_blocks = static_cast<double*>(scratch);
  // A run without values has no stripe.
  cudaError_t status = cudaMemsetAsync(sums, 0, runs.num_tensors() * sizeof(*sums), stream);
  Launch(stream, CeilDiv(view.num_blocks, kWarps), kThreads, &status, AccumulateBlocks, view,
         gradient, share, average, of_blocks);
  Launch(stream, view.num_stripes, kManyLanes, &status, SumRuns, view, of_blocks, sums);
  return TextOf(status);
}

const char* AdagradNormalize(const Parts& runs, const float* gradient, const float* average,
                             const double* means, float epsilon, float* out, void* stream) {
  std::vector<Arrays<3>> arrays;
  int64_t begin = 0;
  for (int64_t run = 0; run < runs.num_tensors(); ++run) {
    arrays.push_back({{const_cast<float*>(gradient + begin), const_cast<float*>(average + begin),
                       out + begin},
                      runs.tensor_size(run), 0});
    begin += runs.tensor_size(run);
  }
  return LaunchForFour(arrays, Normalize{means, epsilon}, stream);
}

const char* Momentum(int64_t count, const float* gradient, float* velocity, MomentumRule rule,
                     const float* factor, float* out, void* stream) {
  const std::vector<Arrays<3>> arrays = {{{const_cast<float*>(gradient), velocity, out}, count, 0}};
  return LaunchForFour(arrays, MoveOn{rule, factor}, stream);
}

const char* Adam(int64_t count, const float* gradient, float* average, float* square, AdamRule rule,
                 AdamStepAt step, float* out, void* stream) {
  const std::vector<Arrays<4>> arrays = {
      {{const_cast<float*>(gradient), average, square, out}, count, 0}};
  return LaunchForFour(arrays, Adapt{rule, step}, stream);
}

}  // namespace gpu
}  // namespace tf_onebit
