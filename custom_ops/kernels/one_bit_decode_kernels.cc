// The inputs and outputs of the one-bit ops that decode, or learn scales from what is decoded.
// Their computation is in one_bit_cpu.h and one_bit_gpu.h.

#include <vector>

#include "kernels/one_bit_op.h"

namespace tf_onebit {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

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
                                                squares.floats()));
  }

 private:
  Layout layout_;
  Device device_;
};

#define REGISTER_FOR(ON, NAME, T)                                                            \
  REGISTER_KERNEL_BUILDER(Name("TfOnebit>OneBitDecode").Device(NAME).TypeConstraint<T>("T"), \
                          OneBitDecodeOp<ON, T>);                                            \
  REGISTER_KERNEL_BUILDER(Name("TfOnebit>OneBitLearnScales")                                 \
                              .Device(NAME)                                                  \
                              .HostMemory("squares")                                         \
                              .TypeConstraint<T>("T"),                                       \
                          OneBitLearnScalesOp<ON, T>)
#define REGISTER(ON, NAME)                                                                       \
  REGISTER_FOR(ON, NAME, float);                                                                 \
  REGISTER_FOR(ON, NAME, Eigen::half);                                                           \
  REGISTER_FOR(ON, NAME, Eigen::bfloat16);                                                       \
  REGISTER_KERNEL_BUILDER(Name("TfOnebit>OneBitDecodeSum").Device(NAME), OneBitDecodeSumOp<ON>); \
  REGISTER_KERNEL_BUILDER(Name("TfOnebit>OneBitDecodeAdd").Device(NAME).HostMemory("variables"), \
                          OneBitDecodeAddOp<ON>)
TF_ONEBIT_REGISTER(REGISTER, OneBitOnCpu, OneBitOnGpu);
#undef REGISTER
#undef REGISTER_FOR

}  // namespace
}  // namespace tf_onebit
