// The inputs and outputs of the one-bit ops that quantize. Their computation is in one_bit_cpu.h
// and one_bit_gpu.h.

#include <string>
#include <vector>

#include "kernels/one_bit_op.h"

namespace tf_onebit {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
namespace errors = tensorflow::errors;

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
      TF_RETURN_IF_ERROR(
          residual->Open(context, input, "residual", size, Types::kFloat32OrBfloat16));
    }
    Tensor* output;
    TF_RETURN_IF_ERROR(context->allocate_output(0, message_shape, &output));
    *messages = WordsOf(output);
    *quantizer = {rule_, bits_, residual->type(), residual->data(), nullptr};
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

#define REGISTER_FOR(ON, NAME, T)                       \
  REGISTER_KERNEL_BUILDER(Name("TfOnebit>OneBitEncode") \
                              .Device(NAME)             \
                              .HostMemory("residual")   \
                              .TypeConstraint<T>("T"),  \
                          OneBitEncodeOp<ON, T>)
#define REGISTER(ON, NAME)                                                                        \
  REGISTER_FOR(ON, NAME, float);                                                                  \
  REGISTER_FOR(ON, NAME, Eigen::half);                                                            \
  REGISTER_FOR(ON, NAME, Eigen::bfloat16);                                                        \
  REGISTER_KERNEL_BUILDER(Name("TfOnebit>OneBitEncodeShard").Device(NAME).HostMemory("residual"), \
                          OneBitEncodeShardOp<ON>);                                               \
  REGISTER_KERNEL_BUILDER(Name("TfOnebit>OneBitAggregate").Device(NAME).HostMemory("residual"),   \
                          OneBitAggregateOp<ON>)
TF_ONEBIT_REGISTER(REGISTER, OneBitOnCpu, OneBitOnGpu);
#undef REGISTER
#undef REGISTER_FOR

}  // namespace
}  // namespace tf_onebit
