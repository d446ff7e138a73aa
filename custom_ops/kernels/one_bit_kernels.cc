// The inputs and outputs of the one-bit ops. Their computation is in one_bit_cpu.h and
// one_bit_gpu.h.

#include <string>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

#include "kernels/one_bit_cpu.h"
#include "kernels/op_common.h"
#include "kernels/op_layout.h"
#include "kernels/op_variables.h"
#ifdef TF_ONEBIT_GPU
#include "kernels/one_bit_gpu.h"
#endif

namespace tf_onebit {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
namespace errors = tensorflow::errors;

#ifdef TF_ONEBIT_GPU

// The counterpart of OneBitOnCpu.
class OneBitOnGpu {
 public:
  absl::Status Encode(OpKernelContext* context, const Layout& layout, FloatType type,
                      const std::vector<const void*>& gradients, const float* value_scales,
                      const OneBitQuantizer& quantizer, int32_t* messages) {
    Scratch scratch;
    const int64_t* table;
    TF_RETURN_IF_ERROR(table_.Get(context, layout, &table));
    TF_RETURN_IF_ERROR(
        scratch.Allocate(context, gpu::OneBitScratchBytes(layout.num_columns())));
    return StatusOf(gpu::OneBitEncode({layout, table}, type, gradients, value_scales, quantizer,
                                      messages, scratch.data(), StreamOf(context)));
  }

  absl::Status DecodeSum(OpKernelContext* context, const Layout& layout, int64_t rank,
                         const int32_t* messages, float* aggregate, float* plain) {
    const int64_t* table;
    TF_RETURN_IF_ERROR(table_.Get(context, layout, &table));
    return StatusOf(gpu::OneBitDecodeSum({layout, table}, rank, messages, aggregate, plain,
                                         StreamOf(context)));
  }

  absl::Status EncodeShard(OpKernelContext* context, const Layout& layout, int64_t rank,
                           const float* aggregate, const OneBitQuantizer& quantizer,
                           int32_t* message) {
    Scratch scratch;
    const int64_t* table;
    TF_RETURN_IF_ERROR(table_.Get(context, layout, &table));
    TF_RETURN_IF_ERROR(
        scratch.Allocate(context, gpu::OneBitScratchBytes(layout.shard_columns(rank))));
    return StatusOf(gpu::OneBitEncodeShard({layout, table}, rank, aggregate, quantizer, message,
                                           scratch.data(), StreamOf(context)));
  }

  absl::Status Aggregate(OpKernelContext* context, const Layout& layout, int64_t rank,
                         const int32_t* messages, const OneBitQuantizer& quantizer,
                         int32_t* message, float* plain) {
    Scratch scratch;
    const int64_t* table;
    TF_RETURN_IF_ERROR(table_.Get(context, layout, &table));
    TF_RETURN_IF_ERROR(
        scratch.Allocate(context, gpu::OneBitScratchBytes(layout.shard_columns(rank))));
    return StatusOf(gpu::OneBitAggregate({layout, table}, rank, messages, quantizer, message, plain,
                                         scratch.data(), StreamOf(context)));
  }

  absl::Status Decode(OpKernelContext* context, const Layout& layout, FloatType type,
                      const int32_t* messages, int bits, const float* plain, float scale,
                      const float* value_scales, const std::vector<void*>& gradients) {
    const int64_t* table;
    TF_RETURN_IF_ERROR(table_.Get(context, layout, &table));
    return StatusOf(gpu::OneBitDecode({layout, table}, type, messages, bits, plain, scale,
                                      value_scales, gradients, StreamOf(context)));
  }

  absl::Status DecodeAdd(OpKernelContext* context, const Layout& layout, const int32_t* messages,
                         int bits, const float* plain, float scale, const float* value_scales,
                         const float* factor, const std::vector<void*>& variables) {
    const int64_t* table;
    TF_RETURN_IF_ERROR(table_.Get(context, layout, &table));
    return StatusOf(gpu::OneBitDecodeAdd({layout, table}, messages, bits, plain, scale,
                                         value_scales, factor, variables, StreamOf(context)));
  }

  absl::Status LearnScales(OpKernelContext* context, const Layout& layout, FloatType type,
                           const std::vector<const void*>& updates, float* squares) {
    return StatusOf(gpu::OneBitLearnScales(layout, type, updates, squares, StreamOf(context)));
  }

 private:
  DeviceTable table_;
};

#endif  // TF_ONEBIT_GPU

absl::Status CheckMessages(const Tensor& messages, int64_t shards, int64_t words) {
  if (messages.shape() == TensorShape({shards, words})) return absl::OkStatus();
  return errors::InvalidArgument("messages must have shape [", shards, ", ", words,
                                 "], as the layout says. Received: shape=",
                                 messages.shape().DebugString(),
                                 ". Do all workers use the same layout?");
}

absl::Status GetBits(OpKernelConstruction* context, int* bits) {
  TF_RETURN_IF_ERROR(context->GetAttr("bits", bits));
  if (*bits >= 1 && *bits <= kMaxBits) return absl::OkStatus();
  return errors::InvalidArgument("bits must be 1 or 2. Received: bits=", *bits);
}

// Reads the scales of the values of all columns. An empty tensor stands for none: nullptr.
absl::Status GetValueScales(const Tensor& tensor, const Layout& layout, const float** scales) {
  *scales = nullptr;
  if (tensor.NumElements() == 0) return absl::OkStatus();
  *scales = static_cast<const float*>(tensor.data());
  return CheckSize("value_scales", tensor.NumElements(), layout.size());
}

// Reads a list of tensors with the sizes of the layout.
absl::Status GetTensors(OpKernelContext* context, const char* input, const char* what,
                        const Layout& layout, std::vector<const void*>* tensors) {
  OpInputList list;
  TF_RETURN_IF_ERROR(context->input_list(input, &list));
  TF_RETURN_IF_ERROR(CheckSize(input, list.size(), layout.num_tensors()));
  for (int t = 0; t < list.size(); ++t) {
    TF_RETURN_IF_ERROR(CheckSize(what, list[t].NumElements(), layout.tensor_size(t)));
  }
  *tensors = PointersOf(list);
  return absl::OkStatus();
}

absl::Status OutputFloats(OpKernelContext* context, int output, const TensorShape& shape,
                          float** values) {
  Tensor* tensor;
  TF_RETURN_IF_ERROR(context->allocate_output(output, shape, &tensor));
  *values = static_cast<float*>(tensor->data());
  return absl::OkStatus();
}

// The common part of the ops that quantize.
class OneBitEncodeBase : public OpKernel {
 public:
  explicit OneBitEncodeBase(OpKernelConstruction* context) : OpKernel(context) {
    std::string levels;
    OP_REQUIRES_OK(context, GetLayout(*context, &layout_));
    OP_REQUIRES_OK(context, context->GetAttr("levels", &levels));
    OP_REQUIRES_OK(context, context->GetAttr("error_feedback", &error_feedback_));
    rule_ = levels == "mean" ? LevelRule::kMean : LevelRule::kSymmetric;
  }

 protected:
  // Opens the residual, input `input`, and makes the first two outputs: messages and sum of squares.
  absl::Status Open(OpKernelContext* context, int input, int64_t size,
                    const TensorShape& message_shape, LockedVariable* residual,
                    OneBitQuantizer* quantizer, int32_t** messages) {
    if (error_feedback_) {
      TF_RETURN_IF_ERROR(residual->Open(context, input, "residual", size));
    }
    Tensor* output;
    TF_RETURN_IF_ERROR(context->allocate_output(0, message_shape, &output));
    *messages = WordsOf(output);
    *quantizer = {rule_, bits_, residual->at(0), nullptr};
    return OutputFloats(context, 1, {}, &quantizer->sum_of_squares);
  }

  Layout layout_;
  LevelRule rule_;
  int bits_ = 1;
  bool error_feedback_;
};

template <typename Device, typename T>
class OneBitEncodeOp : public OneBitEncodeBase {
 public:
  using OneBitEncodeBase::OneBitEncodeBase;

  // Otherwise the executor would queue it behind the rest of the backward pass. Its message should
  // be sent while the backward pass continues.
  bool IsExpensive() override { return false; }

  void Compute(OpKernelContext* context) override {
    std::vector<const void*> gradients;
    OP_REQUIRES_OK(context, GetTensors(context, "gradients", "gradient", layout_, &gradients));
    const int num_gradients = gradients.size();
    const float* value_scales;
    OP_REQUIRES_OK(context,
                   GetValueScales(context->input(num_gradients + 1), layout_, &value_scales));
    LockedVariable residual;
    OneBitQuantizer quantizer;
    int32_t* messages;
    OP_REQUIRES_OK(context, Open(context, num_gradients, layout_.size(),
                                 {layout_.num_shards(), layout_.worker_message_words()}, &residual,
                                 &quantizer, &messages));
    OP_REQUIRES_OK(context, device_.Encode(context, layout_, Storage<T>::kType, gradients,
                                           value_scales, quantizer, messages));
  }

 private:
  Device device_;
};

template <typename Device>
class OneBitDecodeSumOp : public OpKernel {
 public:
  explicit OneBitDecodeSumOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, GetLayout(*context, &layout_));
    OP_REQUIRES_OK(context, GetRank(*context, layout_, &rank_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& messages = context->input(0);
    OP_REQUIRES_OK(
        context, CheckMessages(messages, layout_.num_shards(), layout_.worker_message_words()));
    float *aggregate, *plain;
    OP_REQUIRES_OK(context,
                   OutputFloats(context, 0, {layout_.shard_size(rank_)}, &aggregate));
    OP_REQUIRES_OK(context, OutputFloats(context, 1, {layout_.plain_size()}, &plain));
    OP_REQUIRES_OK(context, device_.DecodeSum(context, layout_, rank_, WordsOf(messages), aggregate,
                                              plain));
  }

 private:
  Layout layout_;
  int64_t rank_;
  Device device_;
};

// The second stage: quantizes the aggregate of this worker's shard, from any source.
class EncodeShardBase : public OneBitEncodeBase {
 public:
  explicit EncodeShardBase(OpKernelConstruction* context) : OneBitEncodeBase(context) {
    if (!context->status().ok()) return;
    OP_REQUIRES_OK(context, GetRank(*context, layout_, &rank_));
    OP_REQUIRES_OK(context, GetBits(context, &bits_));
    OP_REQUIRES(context, bits_ == 1 || error_feedback_,
                errors::InvalidArgument("bits=", bits_, " needs error_feedback, because the second "
                                        "row quantizes the residual that the first one leaves."));
  }

 protected:
  absl::Status OpenShard(OpKernelContext* context, LockedVariable* residual,
                         OneBitQuantizer* quantizer, int32_t** message) {
    return Open(context, 1, layout_.shard_size(rank_), {bits_, layout_.shard_message_words()},
                residual, quantizer, message);
  }

  int64_t rank_;
};

template <typename Device>
class OneBitEncodeShardOp : public EncodeShardBase {
 public:
  using EncodeShardBase::EncodeShardBase;

  void Compute(OpKernelContext* context) override {
    const Tensor& aggregate = context->input(0);
    OP_REQUIRES_OK(context,
                   CheckSize("aggregate", aggregate.NumElements(), layout_.shard_size(rank_)));
    LockedVariable residual;
    OneBitQuantizer quantizer;
    int32_t* message;
    OP_REQUIRES_OK(context, OpenShard(context, &residual, &quantizer, &message));
    OP_REQUIRES_OK(context, device_.EncodeShard(context, layout_, rank_,
                                                static_cast<const float*>(aggregate.data()),
                                                quantizer, message));
  }

 private:
  Device device_;
};

template <typename Device>
class OneBitAggregateOp : public EncodeShardBase {
 public:
  using EncodeShardBase::EncodeShardBase;

  void Compute(OpKernelContext* context) override {
    const Tensor& messages = context->input(0);
    OP_REQUIRES_OK(
        context, CheckMessages(messages, layout_.num_shards(), layout_.worker_message_words()));
    LockedVariable residual;
    OneBitQuantizer quantizer;
    int32_t* message;
    float* plain;
    OP_REQUIRES_OK(context, OpenShard(context, &residual, &quantizer, &message));
    OP_REQUIRES_OK(context, OutputFloats(context, 2, {layout_.plain_size()}, &plain));
    OP_REQUIRES_OK(context, device_.Aggregate(context, layout_, rank_, WordsOf(messages), quantizer,
                                              message, plain));
  }

 private:
  Device device_;
};

// The common part of the ops that decode the messages of all shards.
class OneBitDecodeBase : public OpKernel {
 public:
  explicit OneBitDecodeBase(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, GetLayout(*context, &layout_));
    OP_REQUIRES_OK(context, context->GetAttr("scale", &scale_));
    OP_REQUIRES_OK(context, GetBits(context, &bits_));
  }

 protected:
  struct Encoded {
    const int32_t* messages;
    const float* plain;
    const float* value_scales;
  };

  // Reads the inputs from `first` on: messages, plain values, and scales of values.
  absl::Status GetEncoded(OpKernelContext* context, int first, Encoded* encoded) const {
    const Tensor& messages = context->input(first);
    const Tensor& plain = context->input(first + 1);
    TF_RETURN_IF_ERROR(
        CheckMessages(messages, layout_.num_shards() * bits_, layout_.shard_message_words()));
    TF_RETURN_IF_ERROR(CheckSize("plain", plain.NumElements(), layout_.plain_size()));
    encoded->messages = WordsOf(messages);
    encoded->plain = static_cast<const float*>(plain.data());
    return GetValueScales(context->input(first + 2), layout_, &encoded->value_scales);
  }

  Layout layout_;
  float scale_;
  int bits_;
};

template <typename Device, typename T>
class OneBitDecodeOp : public OneBitDecodeBase {
 public:
  using OneBitDecodeBase::OneBitDecodeBase;

  void Compute(OpKernelContext* context) override {
    Encoded encoded;
    OP_REQUIRES_OK(context, GetEncoded(context, 0, &encoded));
    const int num_tensors = context->num_outputs();
    OP_REQUIRES_OK(context, CheckSize("gradients", num_tensors, layout_.num_tensors()));
    std::vector<void*> gradients(num_tensors);
    for (int t = 0; t < num_tensors; ++t) {
      const int input = context->num_inputs() - num_tensors + t;
      const TensorShape shape = context->input(input).shape();
      OP_REQUIRES_OK(context, CheckSize("gradient", shape.num_elements(), layout_.tensor_size(t)));
      Tensor* gradient;
      OP_REQUIRES_OK(context,
                     context->forward_input_or_allocate_output({input}, t, shape, &gradient));
      gradients[t] = gradient->data();
    }
    OP_REQUIRES_OK(context, device_.Decode(context, layout_, Storage<T>::kType, encoded.messages,
                                           bits_, encoded.plain, scale_, encoded.value_scales,
                                           gradients));
  }

 private:
  Device device_;
};

template <typename Device>
class OneBitDecodeAddOp : public OneBitDecodeBase {
 public:
  using OneBitDecodeBase::OneBitDecodeBase;

  void Compute(OpKernelContext* context) override {
    const int num_variables = context->num_inputs() - 4;
    const Tensor& factor = context->input(num_variables + 3);
    Encoded encoded;
    OP_REQUIRES_OK(context, GetEncoded(context, num_variables, &encoded));
    OP_REQUIRES_OK(context, CheckSize("factor", factor.NumElements(), 1));
    LockedVariables variables;
    OP_REQUIRES_OK(context, variables.Open(context, layout_.num_tensors(),
                                           [&](int t) { return layout_.tensor_size(t); }));
    OP_REQUIRES_OK(context, device_.DecodeAdd(context, layout_, encoded.messages, bits_,
                                              encoded.plain, scale_, encoded.value_scales,
                                              static_cast<const float*>(factor.data()),
                                              variables.values()));
  }

 private:
  Device device_;
};

template <typename Device, typename T>
class OneBitLearnScalesOp : public OpKernel {
 public:
  explicit OneBitLearnScalesOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, GetLayout(*context, &layout_));
  }

  void Compute(OpKernelContext* context) override {
    std::vector<const void*> updates;
    OP_REQUIRES_OK(context, GetTensors(context, "updates", "update", layout_, &updates));
    LockedVariable squares;
    OP_REQUIRES_OK(context, squares.Open(context, updates.size(), "squares", layout_.size()));
    OP_REQUIRES_OK(context, device_.LearnScales(context, layout_, Storage<T>::kType, updates,
                                                squares.at(0)));
  }

 private:
  Layout layout_;
  Device device_;
};

#define REGISTER_FOR(ON, NAME, T)                                                            \
  REGISTER_KERNEL_BUILDER(Name("TfOnebit>OneBitEncode")                                      \
                              .Device(NAME)                                                  \
                              .HostMemory("residual")                                        \
                              .TypeConstraint<T>("T"),                                       \
                          OneBitEncodeOp<ON, T>);                                            \
  REGISTER_KERNEL_BUILDER(Name("TfOnebit>OneBitDecode").Device(NAME).TypeConstraint<T>("T"), \
                          OneBitDecodeOp<ON, T>);                                            \
  REGISTER_KERNEL_BUILDER(Name("TfOnebit>OneBitLearnScales")                                 \
                              .Device(NAME)                                                  \
                              .HostMemory("squares")                                         \
                              .TypeConstraint<T>("T"),                                       \
                          OneBitLearnScalesOp<ON, T>)
#define REGISTER(ON, NAME)                                                                        \
  REGISTER_FOR(ON, NAME, float);                                                                  \
  REGISTER_FOR(ON, NAME, Eigen::half);                                                            \
  REGISTER_FOR(ON, NAME, Eigen::bfloat16);                                                        \
  REGISTER_KERNEL_BUILDER(Name("TfOnebit>OneBitDecodeSum").Device(NAME),                          \
                          OneBitDecodeSumOp<ON>);                                                 \
  REGISTER_KERNEL_BUILDER(Name("TfOnebit>OneBitDecodeAdd").Device(NAME).HostMemory("variables"),  \
                          OneBitDecodeAddOp<ON>);                                                 \
  REGISTER_KERNEL_BUILDER(Name("TfOnebit>OneBitEncodeShard").Device(NAME).HostMemory("residual"), \
                          OneBitEncodeShardOp<ON>);                                               \
  REGISTER_KERNEL_BUILDER(Name("TfOnebit>OneBitAggregate").Device(NAME).HostMemory("residual"),   \
                          OneBitAggregateOp<ON>)
TF_ONEBIT_REGISTER(REGISTER, OneBitOnCpu, OneBitOnGpu);
#undef REGISTER
#undef REGISTER_FOR

}  // namespace
}  // namespace tf_onebit
