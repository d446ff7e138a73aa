// Blockwise model-update filtering (Chen, Ding, Huo 2020), for one value.
//
// Workers train `variable`. `mean` is its mean over the workers at the end of a block. The state,
// the global model and its Delta, is kept in float32, or in float64 for variables in float64. All
// computation is in that type, even if variables have 16 bits. `begin`, the value at the start of a
// block, has been a variable. So it is rounded to the variables' type, and has the same bits
// wherever it is computed. For that, products and sums must be rounded one by one, without
// contraction.

#ifndef TF_ONEBIT_LIB_BLOCK_MOMENTUM_H_
#define TF_ONEBIT_LIB_BLOCK_MOMENTUM_H_

#include <limits>

#include "lib/float16.h"
#include "lib/lanes.h"

namespace tf_onebit {

template <typename T>
struct StateType {
  using Type = float;
};
template <>
struct StateType<double> {
  using Type = double;
};
template <typename T>
using StateOf = typename StateType<T>::Type;

template <typename T>
TF_ONEBIT_HOST_DEVICE StateOf<T> ToState(T value) {
  if constexpr (sizeof(T) == sizeof(double)) {
    return value;
  } else {
    return ToFloat(value);
  }
}

template <typename T>
TF_ONEBIT_HOST_DEVICE T FromState(StateOf<T> value) {
  if constexpr (sizeof(T) == sizeof(double)) {
    return value;
  } else {
    return FromFloat<T>(value);
  }
}

// Returns base + factor * value, and base to the bit if factor is 0, even if base is -0 or value
// infinite. The sum comes first, because loops over values become vectors only without branches.
template <typename State>
TF_ONEBIT_HOST_DEVICE State AddScaled(State base, State factor, State value) {
  const State sum = base + factor * value;
  return factor == 0 ? base : sum;
}

// Returns the value at the start of a block. `look_ahead` is the momentum in force at that time
// with Nesterov's, and 0 with classical momentum.
template <typename T>
TF_ONEBIT_HOST_DEVICE StateOf<T> BeginOf(StateOf<T> global, StateOf<T> delta,
                                         StateOf<T> look_ahead) {
  return ToState(FromState<T>(AddScaled(global, look_ahead, delta)));
}

template <typename T>
TF_ONEBIT_HOST_DEVICE T DifferenceOf(T variable, StateOf<T> begin, StateOf<T> scale) {
  return FromState<T>(scale * (ToState(variable) - begin));
}

template <typename State>
struct BlockUpdateRule {
  State momentum, learning_rate;  // eta and zeta
  State look_ahead;               // of the block that ends
  bool nesterov;
  bool relative;  // whether `mean` is a mean of differences to `begin`
};

// Updates global and delta, and returns the variable to begin the next block with. With
// update = mean - begin:
//   Delta' = eta Delta + zeta update                                          Eq. 1
//   global' = begin + zeta update, variable' = global' + eta Delta'           Nesterov, Eq. 9
//   global' = begin + zeta update + eta Delta, variable' = global'            classical, Eq. 6
// If zeta is 1, begin + zeta update is the mean itself.
template <typename T>
TF_ONEBIT_HOST_DEVICE T UpdateBlock(const BlockUpdateRule<StateOf<T>>& rule, T mean,
                                    StateOf<T>& global, StateOf<T>& delta) {
  using State = StateOf<T>;
  const State begin = BeginOf<T>(global, delta, rule.look_ahead);
  const State received = ToState(mean), sum = begin + received, difference = received - begin;
  const State bar = rule.relative ? sum : received;
  const State update = rule.relative ? received : difference;
  const State base = AddScaled(bar, rule.learning_rate - 1, update);
  const State new_delta = AddScaled(rule.learning_rate * update, rule.momentum, delta);
  const State ahead = AddScaled(base, rule.momentum, rule.nesterov ? new_delta : delta);
  global = rule.nesterov ? base : ahead;
  delta = new_delta;
  return FromState<T>(ahead);
}

// Rule for blocks that end while the worker trains on. It has sent `change`, which is `scale` times
// how far it had come. The sum of what all have sent, times `correction`, is the mean.
template <typename State>
struct LateUpdateRule {
  BlockUpdateRule<State> block;  // relative
  State correction;
  State inverse_scale;  // 0 if `scale` is 0: then the worker had not come anywhere
};

// Updates global and delta as UpdateBlock, and returns that variable plus what the worker has
// learned since it sent its change: (variable - begin) - change / scale.
template <typename T>
TF_ONEBIT_HOST_DEVICE T UpdateLateBlock(const LateUpdateRule<StateOf<T>>& rule, T sum, T change,
                                        T variable, StateOf<T>& global, StateOf<T>& delta) {
  using State = StateOf<T>;
  const State begin = BeginOf<T>(global, delta, rule.block.look_ahead);
  const State then = rule.inverse_scale * ToState(change);
  const State learned = (ToState(variable) - begin) - then;
  const T mean = FromState<T>(rule.correction * ToState(sum));
  return FromState<T>(ToState(UpdateBlock<T>(rule.block, mean, global, delta)) + learned);
}

template <typename State>
struct MomentsUpdateRule {
  State extrapolation;  // kappa
  State floor;          // none if negative
  bool relative;
};

// Updates begin, and returns the optimizer's moment to begin the next block with:
//   max(bar + kappa (bar - begin), floor begin)                               Eq. 16 to 18
template <typename T>
TF_ONEBIT_HOST_DEVICE T UpdateMoment(const MomentsUpdateRule<StateOf<T>>& rule, T mean,
                                     StateOf<T>& begin) {
  using State = StateOf<T>;
  constexpr State kUnbounded = -std::numeric_limits<State>::infinity();
  const State received = ToState(mean), sum = begin + received, lowest = rule.floor * begin;
  const State bar = rule.relative ? sum : received;
  const State moment = AddScaled(bar, rule.extrapolation, bar - begin);
  const State bound = rule.floor >= 0 ? lowest : kUnbounded;
  const T rounded = FromState<T>(moment < bound ? bound : moment);  // a NaN stays one
  begin = ToState(rounded);
  return rounded;
}

}  // namespace tf_onebit

#endif  // TF_ONEBIT_LIB_BLOCK_MOMENTUM_H_
