// The ops of blockwise model-update filtering on the CPU. lib/block_momentum.h has the mathematics
// of one value. Time goes to memory, so loops that the compiler vectorizes for the smallest
// instruction set are fast enough. For files that include TensorFlow.

#ifndef TF_ONEBIT_KERNELS_BLOCK_MOMENTUM_CPU_H_
#define TF_ONEBIT_KERNELS_BLOCK_MOMENTUM_CPU_H_

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"

#include "kernels/op_common.h"
#include "kernels/op_parts.h"
#include "lib/block_momentum.h"

namespace tf_onebit {
namespace block_momentum_loops {

// Calls work(tensor, offset, count) for runs of the values of tensors, in parallel. Values do not
// depend on each other, so results do not depend on threads.
template <typename Work>
void ForRuns(tensorflow::OpKernelContext* context, const std::vector<int64_t>& sizes,
             const Work& work) {
  const int64_t size = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  if (size == 0) return;
  const Parts parts(sizes, size, kStripeSize);
  const std::vector<Stripe>& runs = parts.stripes();
  const int64_t count = runs.size();
  // A few cycles per value: bandwidth bound.
  ParallelFor(context, count, 1 + 4 * size / count, [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) work(runs[i].tensor, runs[i].offset, runs[i].count);
  });
}

// Loops over a run of values. Their pointers never share memory: VariableList::Own has made copies
// where outputs did. They are inline, so that the compiler knows the length of a line.

template <typename T>
inline void DifferenceLoop(const T* __restrict variable, const StateOf<T>* __restrict global,
                           const StateOf<T>* __restrict delta, int64_t count, StateOf<T> scale,
                           StateOf<T> look_ahead, T* __restrict out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = DifferenceOf(variable[i], BeginOf<T>(global[i], delta[i], look_ahead), scale);
  }
}

template <typename T>
inline void DifferenceLoop(const T* __restrict variable, const StateOf<T>* __restrict global,
                           int64_t count, StateOf<T> scale, T* __restrict out) {
  constexpr StateOf<T> kNone = 0;
  for (int64_t i = 0; i < count; ++i) {
    out[i] = DifferenceOf(variable[i], BeginOf<T>(global[i], kNone, kNone), scale);
  }
}

template <typename T>
inline void UpdateLoop(const BlockUpdateRule<StateOf<T>>& rule, const T* __restrict mean,
                       int64_t count, T* __restrict variable, StateOf<T>* __restrict global,
                       StateOf<T>* __restrict delta) {
  for (int64_t i = 0; i < count; ++i) {
    variable[i] = UpdateBlock(rule, mean[i], global[i], delta[i]);
  }
}

template <typename T>
inline void LateUpdateLoop(const LateUpdateRule<StateOf<T>>& rule, const T* __restrict sum,
                           const T* __restrict change, int64_t count, T* __restrict variable,
                           StateOf<T>* __restrict global, StateOf<T>* __restrict delta) {
  for (int64_t i = 0; i < count; ++i) {
    variable[i] = UpdateLateBlock(rule, sum[i], change[i], variable[i], global[i], delta[i]);
  }
}

template <typename T>
inline void MomentsLoop(const MomentsUpdateRule<StateOf<T>>& rule, const T* __restrict mean,
                        int64_t count, T* __restrict variable, StateOf<T>* __restrict begin) {
  for (int64_t i = 0; i < count; ++i) variable[i] = UpdateMoment(rule, mean[i], begin[i]);
}

// Calls loop(first, count) for all of a run, a line of float32 values at a time. It fetches the
// lines of `pointers` well before their use. With four or five streams the processor's own
// prefetching is 1.4 times as slow.
template <typename Loop, typename... Values>
inline void ForLines(int64_t count, const Loop& loop, const Values*... pointers) {
  constexpr int64_t kLine = 16, kAhead = 32 * kLine;
  int64_t i = 0;
  for (; i + kLine <= count; i += kLine) {
    const int64_t ahead = std::min(i + kAhead, count - 1);
    (__builtin_prefetch(pointers + ahead, 1), ...);
    loop(i, kLine);
  }
  loop(i, count - i);
}

}  // namespace block_momentum_loops

// Lists have a pointer for each tensor. T is float, double, float16 or bfloat16.
template <typename T>
class BlockMomentumOnCpu {
 public:
  using State = StateOf<T>;

  // The list is empty if there are no deltas.
  static absl::Status Difference(tensorflow::OpKernelContext* context,
                                 const std::vector<const T*>& variables,
                                 const std::vector<const State*>& globals,
                                 const std::vector<const State*>& deltas,
                                 const std::vector<int64_t>& sizes, State scale, State look_ahead,
                                 const std::vector<T*>& differences) {
    using namespace block_momentum_loops;
    const bool looks_ahead = !deltas.empty() && look_ahead != 0;
    ForRuns(context, sizes, [&](int64_t i, int64_t offset, int64_t values) {
      const T* const variable = variables[i] + offset;
      const State* const global = globals[i] + offset;
      T* const out = differences[i] + offset;
      if (looks_ahead) {
        const State* const delta = deltas[i] + offset;
        ForLines(values, [&](int64_t at, int64_t n) {
          DifferenceLoop(variable + at, global + at, delta + at, n, scale, look_ahead, out + at);
        }, variable, global, delta, out);
      } else {
        ForLines(values, [&](int64_t at, int64_t n) {
          DifferenceLoop(variable + at, global + at, n, scale, out + at);
        }, variable, global, out);
      }
    });
    return absl::OkStatus();
  }

  static absl::Status Update(tensorflow::OpKernelContext* context,
                             const BlockUpdateRule<State>& rule, const std::vector<const T*>& means,
                             const std::vector<int64_t>& sizes, const std::vector<T*>& variables,
                             const std::vector<State*>& globals,
                             const std::vector<State*>& deltas) {
    using namespace block_momentum_loops;
    ForRuns(context, sizes, [&](int64_t i, int64_t offset, int64_t values) {
      const T* const mean = means[i] + offset;
      T* const variable = variables[i] + offset;
      State* const global = globals[i] + offset;
      State* const delta = deltas[i] + offset;
      ForLines(values, [&](int64_t at, int64_t n) {
        UpdateLoop(rule, mean + at, n, variable + at, global + at, delta + at);
      }, mean, variable, global, delta);
    });
    return absl::OkStatus();
  }

  static absl::Status LateUpdate(tensorflow::OpKernelContext* context,
                                 const LateUpdateRule<State>& rule,
                                 const std::vector<const T*>& sums,
                                 const std::vector<const T*>& changes,
                                 const std::vector<int64_t>& sizes,
                                 const std::vector<T*>& variables,
                                 const std::vector<State*>& globals,
                                 const std::vector<State*>& deltas) {
    using namespace block_momentum_loops;
    ForRuns(context, sizes, [&](int64_t i, int64_t offset, int64_t values) {
      const T* const sum = sums[i] + offset;
      const T* const change = changes[i] + offset;
      T* const variable = variables[i] + offset;
      State* const global = globals[i] + offset;
      State* const delta = deltas[i] + offset;
      ForLines(values, [&](int64_t at, int64_t n) {
        LateUpdateLoop(rule, sum + at, change + at, n, variable + at, global + at, delta + at);
      }, sum, change, variable, global, delta);
    });
    return absl::OkStatus();
  }

  static absl::Status Moments(tensorflow::OpKernelContext* context,
                              const MomentsUpdateRule<State>& rule,
                              const std::vector<const T*>& means,
                              const std::vector<int64_t>& sizes, const std::vector<T*>& variables,
                              const std::vector<State*>& begins) {
    using namespace block_momentum_loops;
    ForRuns(context, sizes, [&](int64_t i, int64_t offset, int64_t values) {
      const T* const mean = means[i] + offset;
      T* const variable = variables[i] + offset;
      State* const begin = begins[i] + offset;
      ForLines(values, [&](int64_t at, int64_t n) {
        MomentsLoop(rule, mean + at, n, variable + at, begin + at);
      }, mean, variable, begin);
    });
    return absl::OkStatus();
  }
};

}  // namespace tf_onebit

#endif  // TF_ONEBIT_KERNELS_BLOCK_MOMENTUM_CPU_H_
