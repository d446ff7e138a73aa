// The ops of transforms: names, types, shapes and documentation.

#include <vector>

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_onebit {
namespace {

using tensorflow::shape_inference::InferenceContext;

absl::Status SumsShape(InferenceContext* c) {
  std::vector<int64_t> run_sizes;
  TF_RETURN_IF_ERROR(c->GetAttr("run_sizes", &run_sizes));
  c->set_output(0, c->Vector(run_sizes.size()));
  return absl::OkStatus();
}

REGISTER_OP("TfOnebit>AdagradAccumulate")
    .Input("gradient: float")
    .Input("average: resource")
    .Input("share: double")
    .Output("sums: double")
    .Attr("run_sizes: list(int)")
    .SetIsStateful()
    .SetShapeFn(SumsShape)
    .Doc(R"doc(
Takes a gradient into the running average of its squares, and sums up standard deviations.

average += share * (gradient^2 - average); sums[k] = the sum of sqrt(average) over run k. In place,
in one pass; sums in an order that does not depend on the number of threads. An average that would
not be finite stays as it was.

gradient: The values of all runs, one after another.
average: float32 variable with as many values.
share: Of the new square in the average: scalar from 0 to 1.
run_sizes: Numbers of values.
)doc");

REGISTER_OP("TfOnebit>AdagradNormalize")
    .Input("gradient: float")
    .Input("average: resource")
    .Input("means: double")
    .Output("normalized: float")
    .Attr("run_sizes: list(int)")
    .Attr("epsilon: float")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape)
    .Doc(R"doc(
Divides a gradient by its standard deviation, in units of the mean of all standard deviations.

normalized = gradient / max(sqrt(average) / means[k], epsilon) in run k, and gradient itself if
means[k] is 0. Takes the memory of `gradient` where nothing else needs it.

gradient: The values of all runs, one after another.
average: float32 variable with as many values, from AdagradAccumulate.
means: The mean of sqrt(average) over the matrix that run k is of, finite and at least 0.
run_sizes: Numbers of values.
epsilon: Positive.
)doc");

REGISTER_OP("TfOnebit>Momentum")
    .Input("gradient: float")
    .Input("velocity: resource")
    .Input("factor: float")
    .Output("moved: float")
    .Attr("momentum: float")
    .Attr("nesterov: bool")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape)
    .Doc(R"doc(
Adds a multiple of a gradient to a decaying sum of all before it.

velocity = momentum * velocity + factor * gradient; moved = velocity, or momentum * velocity +
factor * gradient if `nesterov`. In place, in one pass; takes the memory of `gradient` where nothing
else needs it. A velocity that would not be finite stays as it was.

gradient: Values.
velocity: float32 variable with as many.
factor: A scalar.
)doc");

REGISTER_OP("TfOnebit>Adam")
    .Input("gradient: float")
    .Input("variables: num_variables * resource")
    .Input("factor: float")
    .Input("noise: float")
    .Input("unbias: float")
    .Output("update: float")
    .Attr("num_variables: int = 2")
    .Attr("share_of_gradient: float")
    .Attr("share_of_square: float")
    .Attr("epsilon: float")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape)
    .Doc(R"doc(
Follows the averages of a gradient and of its square, and divides the one by the root of the other.

square += share_of_square * (gradient^2 - noise * (gradient - unbias * average)^2 - square); average
+= share_of_gradient * (gradient - average); update = factor * average / (sqrt(square) + epsilon).
With noise, square is at least average^2 times what that can be without noise. In place, in one
pass; takes the memory of `gradient` where nothing else needs it. Where the square would not be
finite, both averages stay as they were, and the update is NaN.

gradient: Values.
variables: Average and square: two float32 variables with as many.
factor: A scalar.
noise: A scalar: the part of squared deviations that squares leave out. 0 for Adam itself.
unbias: A scalar: the factor of `average` that makes it the mean of earlier gradients.
share_of_gradient: Of the new gradient in its average, from 0 to 1.
share_of_square: Of the new square in its average, from 0 to 1.
epsilon: At least 0.
)doc");

}  // namespace
}  // namespace tf_onebit
