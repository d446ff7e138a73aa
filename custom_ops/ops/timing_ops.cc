// The ops that record times in a graph: names, types, shapes and documentation.

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_onebit {
namespace {

using tensorflow::shape_inference::InferenceContext;

REGISTER_OP("TfOnebit>RecordTime")
    .Input("token: resource")
    .Attr("recorder: int >= 0")
    .Attr("event: int >= 0")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Records that an event has come: when all is there that this op waits for.

token: A variable, which is not looked at. TensorFlow has stateful ops without a resource wait for
  each other, in the order of the program; those of different tokens do not.
recorder: What the event is recorded by. Events of one that nobody takes are dropped in the end.
event: What has come.
)doc");

REGISTER_OP("TfOnebit>TakeTimes")
    .Output("events: int32")
    .Output("times: int64")
    .Attr("recorder: int >= 0")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      c->set_output(1, c->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Takes from a recorder what it has recorded.

events: In the order in which they came.
times: When, in nanoseconds of a clock that nobody sets: CLOCK_MONOTONIC.
)doc");

}  // namespace
}  // namespace tf_onebit
