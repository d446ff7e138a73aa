// What transforms of gradients do to one value: normalized AdaGrad (Seide et al. 2014, "On
// parallelizability of stochastic gradient descent for speech DNNs", section 4) and momentum.
//
// `Value` is float, or a vector of them: all arithmetic is rounded step by step, so that both have
// the same bits.

#ifndef TF_ONEBIT_LIB_TRANSFORMS_H_
#define TF_ONEBIT_LIB_TRANSFORMS_H_

#include "lib/lanes.h"

namespace tf_onebit {

// The average of squares, after one more: a first-order low-pass filter of unit gain. `share` is
// that of the new square, which becomes the average itself if it is 1 and the average was 0.
template <typename Value>
TF_ONEBIT_HOST_DEVICE Value FollowSquares(Value average, Value gradient, Value share) {
  return average + share * (gradient * gradient - average);
}

// By what a matrix's gradients are divided: max(sigma * per_mean, floor). Where all sigma are 0,
// there is no mean, and gradients stay what they are.
struct Normalizer {
  float per_mean, floor;
};

TF_ONEBIT_HOST_DEVICE Normalizer NormalizerOf(double mean, float epsilon) {
  if (mean > 0) return {static_cast<float>(1 / mean), epsilon};
  return {0.0f, 1.0f};
}

template <typename Value>
TF_ONEBIT_HOST_DEVICE Value FollowMomentum(Value velocity, Value gradient, Value momentum) {
  return momentum * velocity + gradient;
}

}  // namespace tf_onebit

#endif  // TF_ONEBIT_LIB_TRANSFORMS_H_
