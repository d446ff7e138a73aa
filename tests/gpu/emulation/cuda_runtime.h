// The parts of CUDA that the kernels use, on a CPU, to test their results without a GPU.
//
// `g++ -x c++ -I tests/gpu/emulation` compiles a .cu file with it. Device memory is the process's
// own. The threads of a block are coroutines, which take turns where they wait for each other.
// Blocks run one after another. A missing synchronization does not show as a race, but results are
// the same to the bit. A wait that not all threads of a warp or block reach, undefined on a GPU,
// ends the process.

#ifndef TF_ONEBIT_TESTS_GPU_EMULATION_CUDA_RUNTIME_H_
#define TF_ONEBIT_TESTS_GPU_EMULATION_CUDA_RUNTIME_H_

#include <math.h>
#include <setjmp.h>
#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#define __host__
#define __device__
#define __global__ static
#define __shared__ static  // of the running block: there is one at a time
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct uint3 {
  unsigned x, y, z;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) double2 {
  double x, y;
};

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1 };
using cudaStream_t = void*;

inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;

namespace emulation {

constexpr int kWarp = 32;
constexpr size_t kStackBytes = 256 << 10;

struct Barrier {
  unsigned arrived = 0, generation = 0;
};

struct Warp {
  Barrier barrier;
  uint64_t slots[2][kWarp];  // of this wait and the one before, still being read
};

struct Thread {
  ucontext_t start;
  jmp_buf turn;
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
  bool started, ended;
};

struct Block {
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  Barrier barrier;
  unsigned current = 0;
  bool moved;  // whether any thread got further in this round
  jmp_buf scheduler;
  std::function<void()> kernel;
};

inline Block block;
inline std::mutex launching;  // several threads of the host may do this

[[noreturn]] inline void Fail(const char* what) {
  std::fprintf(stderr, "CUDA emulation: %s\n", what);
  std::abort();
}

// Lets the other threads run.
inline void Yield() {
  if (_setjmp(block.threads[block.current].turn) == 0) _longjmp(block.scheduler, 1);
}

inline void Wait(Barrier& barrier, unsigned count) {
  block.moved = true;
  const unsigned generation = barrier.generation;
  if (++barrier.arrived == count) {
    barrier.arrived = 0;
    ++barrier.generation;
    return;
  }
  while (barrier.generation == generation) Yield();
}

// Shows `value` to the warp, and returns what all its threads show.
inline const uint64_t* Exchange(unsigned mask, uint64_t value) {
  if (mask != 0xFFFFFFFFu) Fail("a warp is expected to wait for all of its threads");
  Warp& warp = block.warps[block.current / kWarp];
  uint64_t* const slots = warp.slots[warp.barrier.generation % 2];
  slots[block.current % kWarp] = value;
  Wait(warp.barrier, kWarp);
  return slots;
}

template <typename T>
uint64_t ToSlot(T value) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t slot = 0;
  std::memcpy(&slot, &value, sizeof(T));
  return slot;
}

template <typename T>
T FromSlot(uint64_t slot) {
  T value;
  std::memcpy(&value, &slot, sizeof(T));
  return value;
}

template <typename T>
T Shuffle(unsigned mask, T value, unsigned source) {
  const uint64_t* const slots = Exchange(mask, ToSlot(value));
  return source < kWarp ? FromSlot<T>(slots[source]) : value;
}

inline void Enter() {
  block.kernel();
  block.threads[block.current].ended = block.moved = true;
  _longjmp(block.scheduler, 1);
}

inline void RunThread(unsigned index) {
  Thread& thread = block.threads[index];
  block.current = index;
  threadIdx = {index % blockDim.x, index / blockDim.x % blockDim.y,
               index / (blockDim.x * blockDim.y)};
  if (_setjmp(block.scheduler) != 0) return;
  if (thread.started) _longjmp(thread.turn, 1);
  thread.started = block.moved = true;
  getcontext(&thread.start);
  thread.start.uc_stack.ss_sp = thread.stack.get();
  thread.start.uc_stack.ss_size = kStackBytes;
  thread.start.uc_link = nullptr;
  makecontext(&thread.start, Enter, 0);
  setcontext(&thread.start);
}

inline void RunBlock() {
  const unsigned count = blockDim.x * blockDim.y * blockDim.z;
  if (count % kWarp != 0) Fail("a block is expected to be whole warps");
  if (block.threads.size() < count) block.threads = std::vector<Thread>(count);
  block.warps.assign(count / kWarp, Warp());
  block.barrier = Barrier();
  for (Thread& thread : block.threads) thread.started = thread.ended = false;
  for (unsigned left = count; left != 0;) {
    block.moved = false;
    left = 0;
    for (unsigned i = 0; i < count; ++i) {
      if (!block.threads[i].ended) RunThread(i);
      left += !block.threads[i].ended;
    }
    if (left != 0 && !block.moved) Fail("threads wait for others that have ended or wait elsewhere");
  }
}

}  // namespace emulation

inline void __syncthreads() {
  emulation::Wait(emulation::block.barrier, blockDim.x * blockDim.y * blockDim.z);
}

inline void __syncwarp(unsigned mask = 0xFFFFFFFFu) { emulation::Exchange(mask, 0); }

inline unsigned __ballot_sync(unsigned mask, int predicate) {
  const uint64_t* const slots = emulation::Exchange(mask, predicate != 0);
  unsigned word = 0;
  for (int lane = 0; lane < emulation::kWarp; ++lane) word |= unsigned(slots[lane]) << lane;
  return word;
}

template <typename T>
T __shfl_sync(unsigned mask, T value, int source) {
  return emulation::Shuffle(mask, value, unsigned(source) % emulation::kWarp);
}

template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta) {
  return emulation::Shuffle(mask, value, emulation::block.current % emulation::kWarp + delta);
}

template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta) {
  return emulation::Shuffle(mask, value, emulation::block.current % emulation::kWarp - delta);
}

template <typename T>
T atomicMin(T* at, T value) {
  const T before = *at;
  if (value < before) *at = value;
  return before;
}

template <typename T>
T atomicAdd(T* at, T value) {
  const T before = *at;
  *at += value;
  return before;
}

inline void __threadfence() {}

// Loads and stores that go around the first-level cache.
template <typename T>
T __ldcg(const T* at) {
  return *at;
}
template <typename T>
void __stcg(T* at, T value) {
  *at = value;
}

inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return unsigned((uint64_t{high} << 32 | low) >> (shift % 32));
}

inline int __popc(unsigned word) { return __builtin_popcount(word); }
inline int __ffs(unsigned word) { return __builtin_ffs(int(word)); }

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  const std::lock_guard<std::mutex> lock(emulation::launching);
  const dim3 grid = config->gridDim;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return cudaErrorInvalidValue;
  if (grid.y > 65535 || grid.z > 65535) return cudaErrorInvalidValue;
  gridDim = grid;
  blockDim = config->blockDim;
  emulation::block.kernel = [&] { kernel(arguments...); };
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = {x, y, z};
        emulation::RunBlock();
      }
    }
  }
  return cudaSuccess;
}

inline cudaError_t cudaMemsetAsync(void* at, int byte, size_t bytes, cudaStream_t) {
  std::memset(at, byte, bytes);
  return cudaSuccess;
}

enum cudaMemcpyKind { cudaMemcpyDefault };

inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                                   cudaStream_t) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}

inline const char* cudaGetErrorString(cudaError_t) { return "invalid value"; }

#endif  // TF_ONEBIT_TESTS_GPU_EMULATION_CUDA_RUNTIME_H_
