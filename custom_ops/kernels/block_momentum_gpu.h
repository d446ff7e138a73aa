// The ops of blockwise model-update filtering on a GPU: block_momentum_kernels.cc launches them on
// a stream. one_bit_gpu.h states common rules.
//
// Lists are in host memory, and have pointers to device memory. T is float, double, float16 or
// bfloat16. State is double if T is, and float otherwise.

#ifndef TF_ONEBIT_KERNELS_BLOCK_MOMENTUM_GPU_H_
#define TF_ONEBIT_KERNELS_BLOCK_MOMENTUM_GPU_H_

#include <cstdint>
#include <vector>

#include "lib/block_momentum.h"

namespace tf_onebit {
namespace gpu {

// The list is empty if there are no deltas.
template <typename T>
const char* BlockDifference(const std::vector<const T*>& variables,
                            const std::vector<const StateOf<T>*>& globals,
                            const std::vector<const StateOf<T>*>& deltas,
                            const std::vector<int64_t>& sizes, StateOf<T> scale,
                            StateOf<T> look_ahead, const std::vector<T*>& differences,
                            void* stream);

template <typename T>
const char* BlockUpdate(const BlockUpdateRule<StateOf<T>>& rule, const std::vector<const T*>& means,
                        const std::vector<int64_t>& sizes, const std::vector<T*>& variables,
                        const std::vector<StateOf<T>*>& globals,
                        const std::vector<StateOf<T>*>& deltas, void* stream);

template <typename T>
const char* LateBlockUpdate(const LateUpdateRule<StateOf<T>>& rule,
                            const std::vector<const T*>& sums,
                            const std::vector<const T*>& changes,
                            const std::vector<int64_t>& sizes, const std::vector<T*>& variables,
                            const std::vector<StateOf<T>*>& globals,
                            const std::vector<StateOf<T>*>& deltas, void* stream);

template <typename T>
const char* MomentsUpdate(const MomentsUpdateRule<StateOf<T>>& rule,
                          const std::vector<const T*>& means, const std::vector<int64_t>& sizes,
                          const std::vector<T*>& variables, const std::vector<StateOf<T>*>& begins,
                          void* stream);

}  // namespace gpu
}  // namespace tf_onebit

#endif  // TF_ONEBIT_KERNELS_BLOCK_MOMENTUM_GPU_H_
