// Launches of threshold kernels for all tensors of a model.

#ifndef TF_ONEBIT_KERNELS_THRESHOLD_TENSORS_GPU_H_
#define TF_ONEBIT_KERNELS_THRESHOLD_TENSORS_GPU_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/gpu.h"
#include "kernels/threshold_gpu.h"

namespace tf_onebit {
namespace gpu {

// Calls work(pointers, first tensor, end tensor, first block, end block) for all tensors.
template <typename T, typename Pointers, typename Work>
void ForTensors(const Parts& parts, const Pointers& tensors, const Work& work) {
  const std::vector<Stripe>& stripes = parts.stripes();
  size_t s = 0;
  for (int64_t first = 0; first < parts.num_tensors(); first += kTensorsPerLaunch) {
    const int64_t end = std::min(parts.num_tensors(), first + kTensorsPerLaunch);
    TensorPointers<T*> pointers = {};
    for (int64_t t = first; t < end; ++t) pointers.at[t - first] = static_cast<T*>(tensors[t]);
    const int64_t first_block = s < stripes.size() ? stripes[s].first_block : parts.num_blocks();
    while (s < stripes.size() && stripes[s].tensor < end) ++s;
    const int64_t end_block = s < stripes.size() ? stripes[s].first_block : parts.num_blocks();
    work(pointers, first, end, first_block, end_block);
  }
}

}  // namespace gpu
}  // namespace tf_onebit

#endif  // TF_ONEBIT_KERNELS_THRESHOLD_TENSORS_GPU_H_
