// Transforms of one value of a gradient: normalized AdaGrad (Seide et al. 2014, "On
// parallelizability of stochastic gradient descent for speech DNNs", section 4), momentum and Adam.
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

template <typename Value>
TF_ONEBIT_HOST_DEVICE Value FollowAverage(Value average, Value gradient, Value share) {
  return average + share * (gradient - average);
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

// The settings of momentum, whose velocity is a decaying sum of factor * gradient.
struct MomentumRule {
  float momentum;
  bool nesterov;
};

// The settings of Adam. A share is the weight of the new gradient, or its square, in an average.
// `least` is the least ratio of the average of squares to the square of the average of gradients.
struct AdamRule {
  float share_of_gradient, share_of_square, epsilon, least;
};

// By the inequality of Cauchy and Schwarz: `least` for averages that began at zero, with decays b1
// and b2, is (1 - b2) (1 - b1^2 / b2) / (1 - b1)^2, or zero where this is negative.
inline AdamRule MakeAdamRule(float share_of_gradient, float share_of_square, float epsilon) {
  const double share = share_of_gradient, decay = 1 - share, decay_of_square = 1 - share_of_square;
  const double rest = decay_of_square - decay * decay;
  const double least = rest > 0 ? share_of_square * rest / (decay_of_square * share * share) : 0.0;
  return {share_of_gradient, share_of_square, epsilon, static_cast<float>(least)};
}

// The numbers of a step of Adam: see the op's documentation.
struct AdamStep {
  float factor, noise, unbias;
};

// Where they are: in the memory of the device that makes the step.
struct AdamStepAt {
  const float *factor, *noise, *unbias;
};

TF_ONEBIT_HOST_DEVICE AdamStep Read(AdamStepAt step) {
  return {*step.factor, *step.noise, *step.unbias};
}

// The factor of the squared average, below which squares do not fall.
TF_ONEBIT_HOST_DEVICE float LeastOf(AdamRule rule, AdamStep step) {
  return step.noise > 0 ? rule.least : 0.0f;
}

// The square of a gradient, less a part of its squared deviation from what was expected.
template <typename Value>
TF_ONEBIT_HOST_DEVICE Value SquareLessNoise(Value gradient, Value expected, Value noise) {
  const Value deviation = gradient - expected;
  return gradient * gradient - noise * (deviation * deviation);
}

template <typename Value>
TF_ONEBIT_HOST_DEVICE Value AdamUpdate(Value factor, Value average, Value root, Value epsilon) {
  return average * factor / (root + epsilon);
}

}  // namespace tf_onebit

#endif  // TF_ONEBIT_LIB_TRANSFORMS_H_
