// The threshold ops: names, types, shapes and documentation.

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

#include "kernels/op_parts.h"

namespace tf_onebit {
namespace {

using tensorflow::shape_inference::InferenceContext;

absl::Status ThresholdEncodeShape(InferenceContext* c) {
  Parts parts;
  TF_RETURN_IF_ERROR(GetParts(*c, Parts::kWhole, &parts));
  c->set_output(0, c->MakeShape({c->MakeDim(parts.num_parts()), c->UnknownDim()}));
  return absl::OkStatus();
}

absl::Status ThresholdRecodeShape(InferenceContext* c) {
  Parts parts;
  TF_RETURN_IF_ERROR(GetParts(*c, Parts::kWhole, &parts));
  tensorflow::shape_inference::ShapeHandle messages;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 3, &messages));
  c->set_output(0, c->MakeShape({c->Dim(messages, 0), c->MakeDim(parts.num_parts()),
                                 c->UnknownDim()}));
  return absl::OkStatus();
}

absl::Status ThresholdDecodeShape(InferenceContext* c) {
  constexpr int kFirstGradient = 1;
  for (int t = 0; t < c->num_outputs(); ++t) c->set_output(t, c->input(kFirstGradient + t));
  return absl::OkStatus();
}

REGISTER_OP("TfOnebit>ThresholdEncode")
    .Input("gradients: N * T")
    .Input("residual: resource")
    .Input("threshold: float")
    .Input("magnitude: float")
    .Input("step: float")
    .Input("capacity: int64")
    .Output("message: W")
    .Attr("W: {int32, float} = DT_INT32")
    .Attr("N: int >= 1")
    .Attr("T: {float, half, bfloat16}")
    .Attr("sizes: list(int)")
    .Attr("part_size: int = 2147483648")
    .Attr("pad: bool = true")
    .Attr("decay: float = 1.0")
    .SetIsStateful()
    .SetShapeFn(ThresholdEncodeShape)
    .Doc(R"doc(
Adds gradients to a residual and encodes what exceeds a threshold.

corrected = gradient + decay * residual; where |corrected| > threshold, its index and sign are sent and
residual = corrected -+ magnitude; else residual = corrected.

gradients: The local gradients, as many values each as `sizes` says. Indices run through all.
residual: float32 variable with as many values as all of them; updated in place.
threshold: Positive.
magnitude: What a value that is sent takes from the residual; at least 0 and finite.
step: What receivers add for it; at least 0 and finite.
capacity: The most values in the message of a part. Others stay in the residual.
W: How the 32-bit words of messages travel, as in OneBitEncode.
message: `[parts, words]`: the message of each run of `part_size` values. Its words are
  flag (0, or 1 + the index of the first gradient that holds a value which is not finite: that value
  stays as it was in the residual), length in words, number of values sent, number of values above
  the threshold, step, sum of squares of the residual, and then, for each value in ascending order,
  its index with the highest bit set if it is negative. If `pad`, the message has room for
  `capacity` values, else for as many as are sent; on a GPU it always has room for `capacity`.
)doc");

REGISTER_OP("TfOnebit>ThresholdDecodeSum")
    .Input("messages: W")
    .Input("gradients: N * T")
    .Output("exchanged: N * T")
    .Attr("W: {int32, float} = DT_INT32")
    .Attr("N: int >= 1")
    .Attr("T: {float, half, bfloat16}")
    .Attr("sizes: list(int)")
    .Attr("part_size: int = 2147483648")
    .Attr("scale: float = 1.0")
    .SetShapeFn(ThresholdDecodeShape)
    .Doc(R"doc(
Decodes messages into the list of gradients and sums them.

messages: `[world_size, parts, words]`; row k came from rank k. Summed in that order, in float32.
gradients: The local gradients. Their values are not read; where nothing else needs them, their
  memory holds the result.
exchanged: Like `gradients`: `scale` times the sum of the workers' steps, each with its sign.
)doc");

REGISTER_OP("TfOnebit>ThresholdDecodeAdd")
    .Input("variables: N * resource")
    .Input("messages: W")
    .Input("factor: float")
    .Attr("W: {int32, float} = DT_INT32")
    .Attr("N: int >= 1")
    .Attr("sizes: list(int)")
    .Attr("part_size: int = 2147483648")
    .Attr("scale: float = 1.0")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Adds what ThresholdDecodeSum would return to variables, in place: variable + factor * exchanged.

Only values that messages have are read and written.

variables: float32, as many values each as `sizes` says.
messages: As in ThresholdDecodeSum.
factor: A scalar.
)doc");

REGISTER_OP("TfOnebit>ThresholdApply")
    .Input("variables: N * resource")
    .Input("messages: W")
    .Attr("W: {int32, float} = DT_INT32")
    .Attr("N: int >= 1")
    .Attr("sizes: list(int)")
    .Attr("part_size: int = 2147483648")
    .Attr("clears: bool = false")
    .Attr("begins: list(int) = []")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Subtracts what messages say from variables, in place: a step of gradient descent. Or clears variables
where messages have values, if `clears`.

variables: float32, as many values each as `sizes` says.
messages: `[number of messages, parts, words]`; applied in that order.
begins: The first value of each variable that messages are about. Variables may then have more values
  than `sizes` says. By default messages are about whole variables.
)doc");

REGISTER_OP("TfOnebit>GolombRiceEncode")
    .Input("messages: W")
    .Output("coded: W")
    .Attr("W: {int32, float} = DT_INT32")
    .Attr("sizes: list(int)")
    .Attr("part_size: int = 2147483648")
    .Attr("pad: bool = true")
    .SetShapeFn(ThresholdRecodeShape)
    .Doc(R"doc(
Codes the indices of messages by their gaps, with Golomb-Rice codes.

messages: `[number of messages, parts, words]`, as from ThresholdEncode.
coded: `[number of messages, parts, words]`. The headers are the same but for the length in words. If
  `pad`, there is room for the most words that a message of as many words as `messages` can need:
  its shape then does not depend on what is coded.
)doc");

REGISTER_OP("TfOnebit>GolombRiceDecode")
    .Input("coded: W")
    .Output("messages: W")
    .Attr("W: {int32, float} = DT_INT32")
    .Attr("sizes: list(int)")
    .Attr("part_size: int = 2147483648")
    .SetShapeFn(ThresholdRecodeShape)
    .Doc(R"doc(
The inverse of GolombRiceEncode, without padding.

coded: `[number of messages, parts, words]`.
messages: `[number of messages, parts, words]`, as long as the longest needs to be.
)doc");

}  // namespace
}  // namespace tf_onebit
