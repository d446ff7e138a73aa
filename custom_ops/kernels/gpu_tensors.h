// Kernels that do the same to every value of a list of tensors. For .cu files.

#ifndef TF_ONEBIT_KERNELS_GPU_TENSORS_H_
#define TF_ONEBIT_KERNELS_GPU_TENSORS_H_

#include <cstdint>
#include <vector>

#include "kernels/gpu.h"
#include "lib/indexing.h"

namespace tf_onebit {
namespace {

// Arrays in device memory for common work: value i of each belongs to value i of the others.
template <int kArrays>
struct Arrays {
  void* at[kArrays];
  int64_t size;
  int64_t first_tile;  // among the tiles of one launch
};

// A kernel's parameter may take 4 KB.
template <int kArrays>
struct ArrayList {
  static constexpr int kMost = 64;
  Arrays<kArrays> items[kMost];
  int count;
};

constexpr int kTileThreads = 256;
constexpr int kVectorsPerThread = 2;
constexpr int64_t kTileSize = int64_t{kTileThreads} * kVectorsPerThread * 4;

// Calls work for every four values. Its arguments are the arrays, their index in the whole list,
// the first value, the number of values left, and whether four values may be read at once.
template <int kArrays, typename Work>
__global__ __launch_bounds__(kTileThreads) void ForFour(
    const __grid_constant__ ArrayList<kArrays> list, const __grid_constant__ Work work,
    int64_t first) {
  const int64_t item =
      LastBy(blockIdx.x, list.items, list.count, &Arrays<kArrays>::first_tile);
  const Arrays<kArrays>& arrays = list.items[item];
  bool aligned = true;
#pragma unroll
  for (int a = 0; a < kArrays; ++a) {
    aligned &= reinterpret_cast<uintptr_t>(arrays.at[a]) % sizeof(uint4) == 0;
  }
  const int64_t begin = (blockIdx.x - arrays.first_tile) * kTileSize;
#pragma unroll
  for (int v = 0; v < kVectorsPerThread; ++v) {
    const int64_t i = begin + (int64_t{v} * kTileThreads + threadIdx.x) * 4;
    if (i < arrays.size) work(arrays.at, first + item, i, arrays.size - i, aligned);
  }
}

template <int kArrays, typename Work>
const char* LaunchForFour(const std::vector<Arrays<kArrays>>& arrays, const Work& work,
                          void* stream) {
  cudaError_t status = cudaSuccess;
  ArrayList<kArrays> list = {};
  int64_t tiles = 0;
  const int64_t size = static_cast<int64_t>(arrays.size());
  for (int64_t i = 0; i < size; ++i) {
    list.items[list.count] = arrays[i];
    list.items[list.count++].first_tile = tiles;
    tiles += CeilDiv(arrays[i].size, kTileSize);
    if (list.count == list.kMost || i + 1 == size) {
      Launch(static_cast<cudaStream_t>(stream), tiles, kTileThreads, &status,
             ForFour<kArrays, Work>, list, work, i + 1 - list.count);
      list.count = 0;
      tiles = 0;
    }
  }
  return TextOf(status);
}

}  // namespace
}  // namespace tf_onebit

#endif  // TF_ONEBIT_KERNELS_GPU_TENSORS_H_
