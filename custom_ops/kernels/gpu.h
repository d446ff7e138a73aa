// Common parts of CUDA kernels: launches, warps, and loads and stores of 16 bytes. For .cu files.

#ifndef TF_ONEBIT_KERNELS_GPU_H_
#define TF_ONEBIT_KERNELS_GPU_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "lib/float16.h"
#include "lib/lanes.h"

namespace tf_onebit {
namespace {

constexpr unsigned kWholeWarp = 0xFFFFFFFFu;
constexpr int kWarpSize = kWordBits;  // a ballot of a warp is a word of codes

// Threads of a block, in kernels whose warps work on columns or blocks of values of their own.
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;

// Stands for the first tensor with a value that is not finite, if there is none.
constexpr uint32_t kNoFailure = 0xFFFFFFFFu;

// Kernels with pointers to tensors take at most this many at once, and are launched again for more.
constexpr int kTensorsPerLaunch = 256;

template <typename Pointer>
struct TensorPointers {
  Pointer at[kTensorsPerLaunch];
};

// Launches a kernel, unless there are no blocks or an error came before.
template <typename... Parameters, typename... Arguments>
void Launch(cudaStream_t stream, int64_t blocks, int threads, cudaError_t* status,
            void (*kernel)(Parameters...), Arguments&&... arguments) {
  if (blocks == 0 || *status != cudaSuccess) return;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  *status = cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

__device__ inline int LaneOfThread() { return static_cast<int>(threadIdx.x % kWarpSize); }
__device__ inline int WarpOfThread() { return static_cast<int>(threadIdx.x / kWarpSize); }

// Returns the sum of a warp's values in the order of SumOfLanes, on all of its threads.
template <typename Value>
__device__ Value WarpSum(Value value) {
#pragma unroll
  for (int width = kWarpSize / 2; width > 0; width /= 2) {
    value += __shfl_down_sync(kWholeWarp, value, width);
  }
  return __shfl_sync(kWholeWarp, value, 0);
}

template <typename T>
__host__ __device__ bool IsAligned(const T* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % (4 * sizeof(T)) == 0;
}

// Four values of T in one load or store, or in two for double.
template <typename T>
struct Vector4;
template <>
struct Vector4<double> {
  struct Type {
    uint4 halves[2];
  };
};
template <>
struct Vector4<float> {
  using Type = uint4;
};
template <>
struct Vector4<float16> {
  using Type = uint2;
};
template <>
struct Vector4<bfloat16> {
  using Type = uint2;
};

// Reads the first four of `left` values. If there are fewer, the others become zeros.
template <typename T>
__device__ void Load4(const T* from, int64_t left, bool aligned, T (&to)[4]) {
  if (aligned && left >= 4) {
    const auto bits = *reinterpret_cast<const typename Vector4<T>::Type*>(from);
    memcpy(to, &bits, sizeof(bits));
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = i < left ? from[i] : T{};
}

// Writes the first four of `left` values, or as many as there are.
template <typename T>
__device__ void Store4(const T (&from)[4], int64_t left, bool aligned, T* to) {
  if (aligned && left >= 4) {
    typename Vector4<T>::Type bits;
    memcpy(&bits, from, sizeof(bits));
    *reinterpret_cast<typename Vector4<T>::Type*>(to) = bits;
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i < left) to[i] = from[i];
  }
}

// A run of values in the registers of a warp. Value 32 * m + lane is in at[m] of a thread, as in
// the words of codes and the lanes of sums. Memory is read and written by four values in a row.
// `staged`, shared memory for 32 * kPerLane values of this warp, converts between the two orders.
template <int kPerLane>
struct WarpValues {
  float at[kPerLane];

  // Loads values, or values + others unless that is nullptr, and zeros from `count` on.
  template <typename T>
  __device__ void Load(const T* values, const float* others, int64_t count, float* staged) {
    const int lane = LaneOfThread();
    const bool aligned = IsAligned(values) && IsAligned(others);
    T value[kPerLane / 4][4];
    float other[kPerLane / 4][4];
#pragma unroll
    for (int c = 0; c < kPerLane / 4; ++c) {
      const int64_t i = (c * kWarpSize + lane) * 4;
      Load4(values + i, count - i, aligned, value[c]);
      if (others != nullptr) Load4(others + i, count - i, aligned, other[c]);
    }
#pragma unroll
    for (int c = 0; c < kPerLane / 4; ++c) {
      float sum[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sum[i] = ToFloat(value[c][i]);
        if (others != nullptr) sum[i] += other[c][i];
      }
      Store4(sum, 4, true, staged + (c * kWarpSize + lane) * 4);
    }
    __syncwarp();
#pragma unroll
    for (int m = 0; m < kPerLane; ++m) at[m] = staged[m * kWarpSize + lane];
    __syncwarp();
  }

  // Stores `count` values.
  __device__ void Store(float* values, int64_t count, float* staged) const {
    const int lane = LaneOfThread();
    const bool aligned = IsAligned(values);
#pragma unroll
    for (int m = 0; m < kPerLane; ++m) staged[m * kWarpSize + lane] = at[m];
    __syncwarp();
#pragma unroll
    for (int c = 0; c < kPerLane / 4; ++c) {
      const int64_t i = (c * kWarpSize + lane) * 4;
      float four[4];
      Load4(staged + i, 4, true, four);
      Store4(four, count - i, aligned, values + i);
    }
    __syncwarp();
  }
};

// Computes SumOfMany on a block of kManyLanes threads. Thread 0 returns the sum.
__device__ inline double SumOfManyOnBlock(const double* sums, int64_t count) {
  __shared__ double lanes[kManyLanes];
  const int thread = static_cast<int>(threadIdx.x);
  double sum = 0;
#pragma unroll 8
  for (int64_t i = thread; i < count; i += kManyLanes) sum += sums[i];
  lanes[thread] = sum;
  for (int width = kManyLanes / 2; width > 0; width /= 2) {
    __syncthreads();
    if (thread < width) lanes[thread] += lanes[thread + width];
  }
  return thread == 0 ? lanes[0] : 0.0;
}

// The shared memory in which the warps of a block of threads stage values.
template <int kPerLane, int kWarps>
struct Staging {
  float4 values[kWarps][kPerLane * kWarpSize / 4];
  __device__ float* OfWarp() { return &values[WarpOfThread()][0].x; }
};

inline const char* TextOf(cudaError_t status) {
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace
}  // namespace tf_onebit

#endif  // TF_ONEBIT_KERNELS_GPU_H_
