// The kernels of blockwise model-update filtering on a GPU: lib/block_momentum.h, for four values
// at a time.

#include "kernels/block_momentum_gpu.h"

#include "kernels/gpu_tensors.h"

namespace tf_onebit {
namespace gpu {
namespace {

template <typename T>
struct Difference {
  using State = StateOf<T>;
  State scale, look_ahead;
  bool has_delta;

  __device__ void operator()(void* const* arrays, int64_t, int64_t i, int64_t left,
                             bool aligned) const {
    T variable[4], out[4];
    State global[4], delta[4] = {};
    Load4(static_cast<const T*>(arrays[0]) + i, left, aligned, variable);
    Load4(static_cast<const State*>(arrays[1]) + i, left, aligned, global);
    if (has_delta) Load4(static_cast<const State*>(arrays[2]) + i, left, aligned, delta);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      out[j] = DifferenceOf(variable[j], BeginOf<T>(global[j], delta[j], look_ahead), scale);
    }
    Store4(out, left, aligned, static_cast<T*>(arrays[3]) + i);
  }
};

template <typename T>
struct Update {
  using State = StateOf<T>;
  BlockUpdateRule<State> rule;

  __device__ void operator()(void* const* arrays, int64_t, int64_t i, int64_t left,
                             bool aligned) const {
    T mean[4], variable[4];
    State global[4], delta[4];
    State* const globals = static_cast<State*>(arrays[2]) + i;
    State* const deltas = static_cast<State*>(arrays[3]) + i;
    Load4(static_cast<const T*>(arrays[0]) + i, left, aligned, mean);
    Load4<State>(globals, left, aligned, global);
    Load4<State>(deltas, left, aligned, delta);
#pragma unroll
    for (int j = 0; j < 4; ++j) variable[j] = UpdateBlock(rule, mean[j], global[j], delta[j]);
    Store4(variable, left, aligned, static_cast<T*>(arrays[1]) + i);
    Store4(global, left, aligned, globals);
    Store4(delta, left, aligned, deltas);
  }
};

template <typename T>
struct LateUpdate {
  using State = StateOf<T>;
  LateUpdateRule<State> rule;

  __device__ void operator()(void* const* arrays, int64_t, int64_t i, int64_t left,
                             bool aligned) const {
    T sum[4], change[4], variable[4];
    State global[4], delta[4];
    T* const variables = static_cast<T*>(arrays[2]) + i;
    State* const globals = static_cast<State*>(arrays[3]) + i;
    State* const deltas = static_cast<State*>(arrays[4]) + i;
    Load4(static_cast<const T*>(arrays[0]) + i, left, aligned, sum);
    Load4(static_cast<const T*>(arrays[1]) + i, left, aligned, change);
    Load4<T>(variables, left, aligned, variable);
    Load4<State>(globals, left, aligned, global);
    Load4<State>(deltas, left, aligned, delta);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      variable[j] =
          UpdateLateBlock(rule, sum[j], change[j], variable[j], global[j], delta[j]);
    }
    Store4(variable, left, aligned, variables);
    Store4(global, left, aligned, globals);
    Store4(delta, left, aligned, deltas);
  }
};

template <typename T>
struct Moments {
  using State = StateOf<T>;
  MomentsUpdateRule<State> rule;

  __device__ void operator()(void* const* arrays, int64_t, int64_t i, int64_t left,
                             bool aligned) const {
    T mean[4], variable[4];
    State begin[4];
    State* const begins = static_cast<State*>(arrays[2]) + i;
    Load4(static_cast<const T*>(arrays[0]) + i, left, aligned, mean);
    Load4<State>(begins, left, aligned, begin);
#pragma unroll
    for (int j = 0; j < 4; ++j) variable[j] = UpdateMoment(rule, mean[j], begin[j]);
    Store4(variable, left, aligned, static_cast<T*>(arrays[1]) + i);
    Store4(begin, left, aligned, begins);
  }
};

// Casts pointers to memory that kernels only read, too.
template <typename T>
void* At(const std::vector<T*>& list, size_t i) {
  return const_cast<void*>(static_cast<const void*>(list[i]));
}

}  // namespace

template <typename T>
const char* BlockDifference(const std::vector<const T*>& variables,
                            const std::vector<const StateOf<T>*>& globals,
                            const std::vector<const StateOf<T>*>& deltas,
                            const std::vector<int64_t>& sizes, StateOf<T> scale,
                            StateOf<T> look_ahead, const std::vector<T*>& differences,
                            void* stream) {
  const bool has_delta = !deltas.empty() && look_ahead != 0;
  std::vector<Arrays<4>> arrays;
  for (size_t i = 0; i < sizes.size(); ++i) {
    void* const delta = has_delta ? At(deltas, i) : nullptr;
    arrays.push_back({{At(variables, i), At(globals, i), delta, differences[i]}, sizes[i], 0});
  }
  return LaunchForFour(arrays, Difference<T>{scale, has_delta ? look_ahead : 0, has_delta}, stream);
}

template <typename T>
const char* BlockUpdate(const BlockUpdateRule<StateOf<T>>& rule, const std::vector<const T*>& means,
                        const std::vector<int64_t>& sizes, const std::vector<T*>& variables,
                        const std::vector<StateOf<T>*>& globals,
                        const std::vector<StateOf<T>*>& deltas, void* stream) {
  std::vector<Arrays<4>> arrays;
  for (size_t i = 0; i < sizes.size(); ++i) {
    arrays.push_back({{At(means, i), variables[i], globals[i], deltas[i]}, sizes[i], 0});
  }
  return LaunchForFour(arrays, Update<T>{rule}, stream);
}

template <typename T>
const char* LateBlockUpdate(const LateUpdateRule<StateOf<T>>& rule,
                            const std::vector<const T*>& sums,
                            const std::vector<const T*>& changes,
                            const std::vector<int64_t>& sizes, const std::vector<T*>& variables,
                            const std::vector<StateOf<T>*>& globals,
                            const std::vector<StateOf<T>*>& deltas, void* stream) {
  std::vector<Arrays<5>> arrays;
  for (size_t i = 0; i < sizes.size(); ++i) {
    arrays.push_back(
        {{At(sums, i), At(changes, i), variables[i], globals[i], deltas[i]}, sizes[i], 0});
  }
  return LaunchForFour(arrays, LateUpdate<T>{rule}, stream);
}

template <typename T>
const char* MomentsUpdate(const MomentsUpdateRule<StateOf<T>>& rule,
                          const std::vector<const T*>& means, const std::vector<int64_t>& sizes,
                          const std::vector<T*>& variables, const std::vector<StateOf<T>*>& begins,
                          void* stream) {
  std::vector<Arrays<3>> arrays;
  for (size_t i = 0; i < sizes.size(); ++i) {
    arrays.push_back({{At(means, i), variables[i], begins[i]}, sizes[i], 0});
  }
  return LaunchForFour(arrays, Moments<T>{rule}, stream);
}

#define INSTANTIATE(T)                                                                           \
  template const char* BlockDifference<T>(                                                       \
      const std::vector<const T*>&, const std::vector<const StateOf<T>*>&,                       \
      const std::vector<const StateOf<T>*>&, const std::vector<int64_t>&, StateOf<T>, StateOf<T>, \
      const std::vector<T*>&, void*);                                                            \
  template const char* BlockUpdate<T>(                                                           \
      const BlockUpdateRule<StateOf<T>>&, const std::vector<const T*>&,                          \
      const std::vector<int64_t>&, const std::vector<T*>&, const std::vector<StateOf<T>*>&,      \
      const std::vector<StateOf<T>*>&, void*);                                                   \
  template const char* LateBlockUpdate<T>(                                                       \
      const LateUpdateRule<StateOf<T>>&, const std::vector<const T*>&,                           \
      const std::vector<const T*>&, const std::vector<int64_t>&, const std::vector<T*>&,         \
      const std::vector<StateOf<T>*>&, const std::vector<StateOf<T>*>&, void*);                  \
  template const char* MomentsUpdate<T>(                                                         \
      const MomentsUpdateRule<StateOf<T>>&, const std::vector<const T*>&,                        \
      const std::vector<int64_t>&, const std::vector<T*>&, const std::vector<StateOf<T>*>&, void*)
INSTANTIATE(float);
INSTANTIATE(double);
INSTANTIATE(float16);
INSTANTIATE(bfloat16);
#undef INSTANTIATE

}  // namespace gpu
}  // namespace tf_onebit
