// Common parts of CUDA kernels: launches, warps, and loads and stores of 16 bytes. For .cu files.

#ifndef TF_ONEBIT_KERNELS_GPU_H_
#define TF_ONEBIT_KERNELS_GPU_H_

#include <cuda_runtime.h>

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

template <typename T>
__host__ __device__ bool IsAligned(const T* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % alignof(typename Vector4<T>::Type) == 0;
}

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

// Stores a vector at once. An assignment would not always be one store: where another branch stores
// the four values singly, nvcc shares code between the two.
__device__ inline void StoreBits(const uint4& bits, uint4* to) { __stcg(to, bits); }
__device__ inline void StoreBits(const uint2& bits, uint2* to) { __stcg(to, bits); }
__device__ inline void StoreBits(const Vector4<double>::Type& bits, Vector4<double>::Type* to) {
  StoreBits(bits.halves[0], &to->halves[0]);
  StoreBits(bits.halves[1], &to->halves[1]);
}

// Writes the first four of `left` values, or as many as there are, to global memory.
template <typename T>
__device__ void Store4(const T (&from)[4], int64_t left, bool aligned, T* to) {
  if (aligned && left >= 4) {
    typename Vector4<T>::Type bits;
    memcpy(&bits, from, sizeof(bits));
    StoreBits(bits, reinterpret_cast<typename Vector4<T>::Type*>(to));
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i < left) to[i] = from[i];
  }
}

// Which values exist in a span of a known size: all of them, or the first `count`. Code for all of
// them has no comparisons.
template <int kSize>
struct AllValues {
  static constexpr int count = kSize;
  __device__ static constexpr bool Has(int) { return true; }
  // Returns how many of the four values from `i` on exist.
  __device__ static constexpr int OfFour(int) { return 4; }
};
struct FirstValues {
  int count;
  __device__ bool Has(int i) const { return i < count; }
  __device__ int OfFour(int i) const { return count - i < 4 ? count - i : 4; }
};

// Calls work with the values that exist in a span of at most kSize.
template <int kSize, typename Work>
__device__ void WithExisting(int64_t count, const Work& work) {
  if (count >= kSize) {
    work(AllValues<kSize>{});
  } else {
    work(FirstValues{static_cast<int>(count)});
  }
}

// A span of values in the registers of a warp. Value 32 * m + lane is in at[m] of a thread, as in
// the words of codes and the lanes of sums. So each load and store of a warp is of 32 values in a
// row.
template <int kPerLane>
struct WarpValues {
  static constexpr int kSize = kPerLane * kWarpSize;
  float at[kPerLane];

  // Returns which value of the span at[m] is.
  __device__ static int ValueOf(int m) { return m * kWarpSize + LaneOfThread(); }

  // Loads values. Those that do not exist become zeros.
  template <typename T, typename Existing>
  __device__ void Load(const T* values, const Existing& existing) {
    values += LaneOfThread();
#pragma unroll
    for (int m = 0; m < kPerLane; ++m) {
      at[m] = existing.Has(ValueOf(m)) ? ToFloat(values[m * kWarpSize]) : 0.0f;
    }
  }

  template <typename T, typename Existing>
  __device__ void Add(const T* values, const Existing& existing) {
    WarpValues others;
    others.Load(values, existing);
#pragma unroll
    for (int m = 0; m < kPerLane; ++m) at[m] += others.at[m];
  }

  template <typename Existing>
  __device__ void Divide(const float* values, const Existing& existing) {
    WarpValues divisors;
    divisors.Load(values, existing);
#pragma unroll
    for (int m = 0; m < kPerLane; ++m) {
      if (existing.Has(ValueOf(m))) at[m] /= divisors.at[m];
    }
  }

  // Stores values that T can hold.
  template <typename Existing, typename T>
  __device__ void Store(const Existing& existing, T* values) const {
    values += LaneOfThread();
#pragma unroll
    for (int m = 0; m < kPerLane; ++m) {
      if (existing.Has(ValueOf(m))) values[m * kWarpSize] = Narrowed<T>(at[m]);
    }
  }
};

// Calls add(value) for values[first], values[first + step] and so on below `end`. It reads kAtOnce
// values before it adds them, because each read alone would be waited for. Zeros stand for those
// that do not exist, and change no sum that has begun with a zero.
template <int kAtOnce, typename Value, typename Add>
__device__ void ReadAhead(const Value* values, int64_t first, int64_t end, int64_t step,
                          const Add& add) {
  for (int64_t begin = first; begin < end; begin += kAtOnce * step) {
    Value read[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int64_t at = begin + i * step;
      read[i] = at < end ? values[at] : Value{};
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) add(read[i]);
  }
}

// Leaves the sum of kManyLanes values in lanes[0], in the order of SumOfLanes.
__device__ inline void SumLanesOnBlock(double* lanes) {
  for (int width = kManyLanes / 2; width > 0; width /= 2) {
    __syncthreads();
    for (int i = threadIdx.x; i < width; i += blockDim.x) lanes[i] += lanes[i + width];
  }
}

// Computes SumOfMany on a block of kManyLanes threads. Thread 0 returns the sum, others 0.
__device__ inline double SumOfManyOnBlock(const double* sums, int64_t count) {
  __shared__ double lanes[kManyLanes];
  const int thread = static_cast<int>(threadIdx.x);
  double sum = 0;
  ReadAhead<16>(sums, thread, count, kManyLanes, [&](double value) { sum += value; });
  lanes[thread] = sum;
  SumLanesOnBlock(lanes);
  return thread == 0 ? lanes[0] : 0.0;
}

inline const char* TextOf(cudaError_t status) {
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace
}  // namespace tf_onebit

#endif  // TF_ONEBIT_KERNELS_GPU_H_
