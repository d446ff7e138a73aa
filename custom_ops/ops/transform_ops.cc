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
    .Output("moved: float")
    .Attr("momentum: float")
    .Attr("nesterov: bool")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape)
    .Doc(R"doc(
Adds a gradient to a decaying sum of all before it.

velocity = momentum * velocity + gradient; moved = velocity, or gradient + momentum * velocity if
`nesterov`. In place, in one pass; takes the memory of `gradient` where nothing else needs it. A
velocity that would not be finite stays as it was.

gradient: Values.
velocity: float32 variable with as many.
)doc");

}  // namespace
}  // namespace tf_onebit
