// Transforms of one value of a gradient: normalized AdaGrad (Seide et al. 2014, "On
// parallelizability of stochastic gradient descent for speech DNNs", section 4) and momentum.
//
// `Value` is float, or a vector of floats. All arithmetic is rounded step by step, so that both
// have the same bits.

#ifndef TF_ONEBIT_LIB_TRANSFORMS_H_
#define TF_ONEBIT_LIB_TRANSFORMS_H_

#include "lib/lanes.h"

namespace tf_onebit {

// Updates the average of squares: a first-order low-pass filter of unit gain. `share` is the weight
// of the new square. If it is 1 and the average was 0, the square becomes the average.
template <typename Value>
TF_ONEBIT_HOST_DEVICE Value FollowSquares(Value average, Value gradient, Value share) {
  return average + share * (gradient * gradient - average);
}

// The divisor of a matrix's gradients: max(sigma * per_mean, floor). If all sigma are 0, there is
// no mean, and gradients stay unchanged.
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
