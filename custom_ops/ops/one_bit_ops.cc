// The one-bit ops: names, types, shapes and documentation.

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

#include "kernels/op_layout.h"

namespace tf_onebit {
namespace {

using tensorflow::shape_inference::InferenceContext;

absl::Status OneBitEncodeShape(InferenceContext* c) {
  Layout layout;
  TF_RETURN_IF_ERROR(GetLayout(*c, &layout));
  c->set_output(0, c->Matrix(layout.num_shards(), layout.worker_message_words()));
  c->set_output(1, c->Scalar());
  return absl::OkStatus();
}

absl::Status DecodeSumShape(InferenceContext* c) {
  Layout layout;
  int64_t rank;
  TF_RETURN_IF_ERROR(GetLayout(*c, &layout));
  TF_RETURN_IF_ERROR(GetRank(*c, layout, &rank));
  c->set_output(0, c->Vector(layout.shard_size(rank)));
  c->set_output(1, c->Vector(layout.plain_size()));
  return absl::OkStatus();
}

absl::Status EncodeShardShape(InferenceContext* c) {
  Layout layout;
  TF_RETURN_IF_ERROR(GetLayout(*c, &layout));
  int64_t bits;
  TF_RETURN_IF_ERROR(c->GetAttr("bits", &bits));
  c->set_output(0, c->Matrix(bits, layout.shard_message_words()));
  c->set_output(1, c->Scalar());
  return absl::OkStatus();
}

absl::Status AggregateShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(EncodeShardShape(c));
  Layout layout;
  TF_RETURN_IF_ERROR(GetLayout(*c, &layout));
  c->set_output(2, c->Vector(layout.plain_size()));
  return absl::OkStatus();
}

absl::Status OneBitDecodeShape(InferenceContext* c) {
  constexpr int kFirstGradient = 3;
  for (int t = 0; t < c->num_outputs(); ++t) c->set_output(t, c->input(kFirstGradient + t));
  return absl::OkStatus();
}

REGISTER_OP("TfOnebit>OneBitEncode")
    .Input("gradients: N * T")
    .Input("residual: resource")
    .Input("value_scales: float")
    .Output("messages: W")
    .Output("residual_sum_of_squares: float")
    .Attr("W: {int32, float} = DT_INT32")
    .Attr("N: int >= 1")
    .Attr("T: {float, half, bfloat16}")
    .Attr("sizes: list(int)")
    .Attr("row_sizes: list(int)")
    .Attr("column_sizes: list(int)")
    .Attr("shard_starts: list(int)")
    .Attr("levels: {'mean', 'symmetric'} = 'mean'")
    .Attr("error_feedback: bool = true")
    .SetIsStateful()
    .SetShapeFn(OneBitEncodeShape)
    .Doc(R"doc(
Quantizes a list of gradients to one bit per value, with error feedback.

For each column, corrected = gradient / value_scale + residual; code = corrected >= 0; the two
levels are the means of the corrected values on either side; residual = corrected - levels[code].
Tensors with column size 0 are copied in full precision into every message.

gradients: The local gradients, as many values each as `sizes` says.
residual: Variable with as many values as all columns together, float32, or bfloat16, which is rounded
  up or down so that errors cancel out over time; updated in place.
  Not read if `error_feedback` is false.
value_scales: As many values as all columns together, or none, which stands for ones.
W: How the 32-bit words of messages travel: as int32, or as float32 with the same bits, because
  TensorFlow keeps int32 tensors of a GPU in host memory.
messages: `[world_size, words]`; row k is the message to the owner of shard k. Word 0 is zero, or
  1 + the index of the first gradient that holds a value which is not finite; its column is sent
  as zeros and keeps its residual.
residual_sum_of_squares: Of the residual after the update.
)doc");

REGISTER_OP("TfOnebit>OneBitDecodeSum")
    .Input("messages: W")
    .Output("aggregate: float")
    .Output("plain: float")
    .Attr("W: {int32, float} = DT_INT32")
    .Attr("sizes: list(int)")
    .Attr("row_sizes: list(int)")
    .Attr("column_sizes: list(int)")
    .Attr("shard_starts: list(int)")
    .Attr("rank: int >= 0")
    .SetShapeFn(DecodeSumShape)
    .Doc(R"doc(
Decodes the messages of all workers about the shard that this worker owns and sums them.

messages: `[world_size, words]`; row k came from rank k. Summed in that order.
aggregate: The sum over the workers of the shard's values.
plain: The sum over the workers of the values that travel in full precision.
)doc");

REGISTER_OP("TfOnebit>OneBitEncodeShard")
    .Input("aggregate: float")
    .Input("residual: resource")
    .Output("message: W")
    .Output("residual_sum_of_squares: float")
    .Attr("W: {int32, float} = DT_INT32")
    .Attr("sizes: list(int)")
    .Attr("row_sizes: list(int)")
    .Attr("column_sizes: list(int)")
    .Attr("shard_starts: list(int)")
    .Attr("rank: int >= 0")
    .Attr("levels: {'mean', 'symmetric'} = 'mean'")
    .Attr("error_feedback: bool = true")
    .Attr("bits: int >= 1 = 1")
    .SetIsStateful()
    .SetShapeFn(EncodeShardShape)
    .Doc(R"doc(
Quantizes the aggregate of a shard to one or two bits per value, with error feedback of its own.

aggregate: The values of shard `rank`.
residual: float32 or bfloat16 variable of the same size; updated in place.
bits: 1 or 2. The second row of the message quantizes the residual that the first one leaves.
message: `[bits, words]`, for all workers. Word 0 of each row as in OneBitEncode.
residual_sum_of_squares: Of the residual after the update.
)doc");

REGISTER_OP("TfOnebit>OneBitAggregate")
    .Input("messages: W")
    .Input("residual: resource")
    .Output("message: W")
    .Output("residual_sum_of_squares: float")
    .Output("plain: float")
    .Attr("W: {int32, float} = DT_INT32")
    .Attr("sizes: list(int)")
    .Attr("row_sizes: list(int)")
    .Attr("column_sizes: list(int)")
    .Attr("shard_starts: list(int)")
    .Attr("rank: int >= 0")
    .Attr("levels: {'mean', 'symmetric'} = 'mean'")
    .Attr("error_feedback: bool = true")
    .Attr("bits: int >= 1 = 1")
    .SetIsStateful()
    .SetShapeFn(AggregateShape)
    .Doc(R"doc(
OneBitDecodeSum and OneBitEncodeShard in one pass, column by column: the aggregate of a shard is
nowhere in memory as a whole.

messages, plain: As in OneBitDecodeSum.
residual, bits, message, residual_sum_of_squares: As in OneBitEncodeShard.
)doc");

REGISTER_OP("TfOnebit>OneBitDecode")
    .Input("messages: W")
    .Input("plain: float")
    .Input("value_scales: float")
    .Input("gradients: N * T")
    .Output("exchanged: N * T")
    .Attr("W: {int32, float} = DT_INT32")
    .Attr("N: int >= 1")
    .Attr("T: {float, half, bfloat16}")
    .Attr("sizes: list(int)")
    .Attr("row_sizes: list(int)")
    .Attr("column_sizes: list(int)")
    .Attr("shard_starts: list(int)")
    .Attr("scale: float = 1.0")
    .Attr("bits: int >= 1 = 1")
    .SetShapeFn(OneBitDecodeShape)
    .Doc(R"doc(
Decodes the messages of all shards into the list of gradients.

messages: `[world_size * bits, words]`; the messages of the shards, one after another.
bits: The rows of a message, whose values add up.
plain: The values that travel in full precision, from OneBitDecodeSum.
value_scales: As in OneBitEncode. Values in columns are multiplied by them, in float32, after they
  have been rounded to T.
gradients: The local gradients. Their values are not read; where nothing else needs them, their
  memory holds the result.
exchanged: Like `gradients`, multiplied by `scale`: 1 for the sum over the workers,
  1 / world_size for their mean.
)doc");

REGISTER_OP("TfOnebit>OneBitDecodeAdd")
    .Input("variables: N * resource")
    .Input("messages: W")
    .Input("plain: float")
    .Input("value_scales: float")
    .Input("factor: float")
    .Attr("W: {int32, float} = DT_INT32")
    .Attr("N: int >= 1")
    .Attr("sizes: list(int)")
    .Attr("row_sizes: list(int)")
    .Attr("column_sizes: list(int)")
    .Attr("shard_starts: list(int)")
    .Attr("scale: float = 1.0")
    .Attr("bits: int >= 1 = 1")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Adds what OneBitDecode would return to variables, in place: variable + factor * exchanged.

variables: float32, as many values each as `sizes` says.
messages, plain, value_scales: As in OneBitDecode.
factor: A scalar.
)doc");

REGISTER_OP("TfOnebit>OneBitLearnScales")
    .Input("updates: N * T")
    .Input("squares: resource")
    .Attr("N: int >= 1")
    .Attr("T: {float, half, bfloat16}")
    .Attr("sizes: list(int)")
    .Attr("row_sizes: list(int)")
    .Attr("column_sizes: list(int)")
    .Attr("shard_starts: list(int)")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Follows the squares of the values of updates: squares = 0.95 * squares + 0.05 * update^2.

A result that is not finite is dropped. Tensors with column size 0 are not read.

updates: As many values each as `sizes` says.
squares: float32 variable with as many values as all columns together; updated in place.
)doc");

}  // namespace
}  // namespace tf_onebit
