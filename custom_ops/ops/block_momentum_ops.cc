// The ops of blockwise model-update filtering: names, types, shapes and documentation.

#include <vector>

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/errors.h"

namespace tf_onebit {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status DifferenceShape(InferenceContext* c) {
  std::vector<tensorflow::PartialTensorShape> shapes;
  TF_RETURN_IF_ERROR(c->GetAttr("shapes", &shapes));
  if (shapes.size() != c->num_outputs()) {
    return tensorflow::errors::InvalidArgument(
        "There must be one shape for each variable. Received: ", c->num_outputs(), " variables, ",
        shapes.size(), " shapes.");
  }
  for (int i = 0; i < c->num_outputs(); ++i) {
    ShapeHandle shape;
    TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(shapes[i], &shape));
    c->set_output(i, shape);
  }
  return absl::OkStatus();
}

REGISTER_OP("TfOnebit>BlockDifference")
    .Input("variables: N * resource")
    .Input("globals: N * resource")
    .Input("deltas: M * resource")
    .Input("coefficients: double")
    .Output("differences: N * T")
    .Attr("N: int >= 1")
    .Attr("M: int >= 0")
    .Attr("T: {float, double, half, bfloat16}")
    .Attr("shapes: list(shape)")
    .SetIsStateful()
    .SetShapeFn(DifferenceShape)
    .Doc(R"doc(
Computes how far variables have come since a block began.

begin = T(global + look_ahead * delta), difference = T(scale * (variable - begin)). State and
arithmetic are float64 if T is, else float32. All variables must be different ones.

variables: Of type T, initialized.
globals: The global model: variables of the same shapes, float64 if T is, else float32.
deltas: The filtered updates of the model, like `globals`. Or none: then begin = T(global).
coefficients: [scale, look_ahead], finite. If look_ahead is 0, begin = T(global) to the bit.
differences: Like `variables`.
shapes: The shapes of `variables`.
)doc");

REGISTER_OP("TfOnebit>BlockUpdate")
    .Input("means: N * T")
    .Input("variables: N * resource")
    .Input("globals: N * resource")
    .Input("deltas: N * resource")
    .Input("coefficients: double")
    .Attr("N: int >= 1")
    .Attr("T: {float, double, half, bfloat16}")
    .Attr("relative: bool")
    .Attr("nesterov: bool")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Ends a block: filters the update of the model, and sets variables for the next block.

begin = T(global + look_ahead * delta); update = mean if `relative`, else mean - begin;
base = begin + block_learning_rate * update; new_delta = block_momentum * delta +
block_learning_rate * update. If `nesterov`, global = base and variable = T(base + block_momentum *
new_delta); else global = base + block_momentum * delta and variable = T(global). In place, under
the locks of all variables, which must be different ones; nothing is changed on an error.

means: The means of the workers' variables, or of their BlockDifference if `relative`.
variables: Of type T, with the shapes of `means`. Only written: begin is computed anew.
globals: Variables of the same shapes, float64 if T is, else float32, as is the arithmetic.
deltas: Like `globals`.
coefficients: [block_momentum, block_learning_rate, look_ahead], finite; look_ahead is that of the
  block that ends, 0 for classical momentum. With a block_learning_rate of 1, base is the mean, or
  begin + mean if `relative`; with a factor of 0, what it would multiply is not added at all.
)doc");

REGISTER_OP("TfOnebit>LateBlockUpdate")
    .Input("means: N * T")
    .Input("changes: N * T")
    .Input("variables: N * resource")
    .Input("globals: N * resource")
    .Input("deltas: N * resource")
    .Input("coefficients: double")
    .Attr("N: int >= 1")
    .Attr("T: {float, double, half, bfloat16}")
    .Attr("nesterov: bool")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Ends a block some steps late, and keeps what variables have learned meanwhile.

Does what BlockUpdate does with T(correction * means), which are `relative`. To each variable it
then adds (variable - begin) - inverse_scale * change: how far it has come since.

means: The sums of what the workers have sent.
changes: What this worker has sent: BlockDifference at the end of the block, with a scale.
variables: Of type T, with the shapes of `means`. Read and written.
globals: Variables of the same shapes, float64 if T is, else float32, as is the arithmetic.
deltas: Like `globals`.
coefficients: [block_momentum, block_learning_rate, look_ahead, correction, inverse_scale], finite.
  The last is 1 / scale, or 0 if the scale is 0. The others are as for BlockUpdate.
)doc");

REGISTER_OP("TfOnebit>MomentsUpdate")
    .Input("means: N * T")
    .Input("variables: N * resource")
    .Input("begins: N * resource")
    .Input("coefficients: double")
    .Attr("N: int >= 1")
    .Attr("T: {float, double, half, bfloat16}")
    .Attr("relative: bool")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Ends a block: sets an optimizer's moments to what the next block begins with.

bar = begin + mean if `relative`, else mean; variable = begin = T(max(bar + extrapolation * (bar -
begin), floor * begin)). In place, under the locks of all variables, which must be different ones;
nothing is changed on an error.

means: The means of the workers' moments, or of their BlockDifference if `relative`.
variables: The moments: of type T, with the shapes of `means`. Only written.
begins: What the moments began the block with: variables of the same shapes, float64 if T is, else
  float32, as is the arithmetic.
coefficients: [extrapolation, floor], finite. A negative floor: there is none.
)doc");

}  // namespace
}  // namespace tf_onebit
