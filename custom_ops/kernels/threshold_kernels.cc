// The inputs and outputs of the threshold ops. Their computation is in threshold_cpu.h and
// threshold_gpu.h.

#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

#include "kernels/op_common.h"
#include "kernels/op_parts.h"
#include "kernels/op_threshold.h"
#include "kernels/op_variables.h"
#include "kernels/threshold_cpu.h"
#ifdef TF_ONEBIT_GPU
#include "kernels/threshold_gpu.h"
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

// The counterpart of ThresholdOnCpu. The lengths of messages do not depend on their contents.
class ThresholdOnGpu {
 public:
  static constexpr int64_t kStripeSize = Parts::kWhole;

  absl::Status Encode(OpKernelContext* context, const Parts& parts, FloatType type,
                      const std::vector<const void*>& gradients, float* residual,
                      const float* threshold, const float* magnitude, const float* step,
                      float decay, int64_t capacity, bool) {
    Scratch scratch;
    const int64_t* table;
    Tensor* output;
    TF_RETURN_IF_ERROR(table_.Get(context, parts, &table));
    TF_RETURN_IF_ERROR(scratch.Allocate(context, gpu::ThresholdScratchBytes(parts)));
    TF_RETURN_IF_ERROR(
        context->allocate_output(0, {parts.num_parts(), kHeaderWords + capacity}, &output));
    return StatusOf(gpu::ThresholdEncode({parts, table}, type, gradients, residual, threshold,
                                         magnitude, step, decay, capacity, WordsOf(output),
                                         scratch.data(), StreamOf(context)));
  }

  absl::Status DecodeSum(OpKernelContext* context, const Parts& parts, FloatType type,
                         const ThresholdRows& rows, float scale,
                         const std::vector<void*>& gradients) {
    const int64_t* table;
    TF_RETURN_IF_ERROR(table_.Get(context, parts, &table));
    return StatusOf(
        gpu::ThresholdDecodeSum({parts, table}, type, rows, scale, gradients, StreamOf(context)));
  }

  absl::Status DecodeAdd(OpKernelContext* context, const Parts& parts, const ThresholdRows& rows,
                         float scale, const float* factor, const std::vector<void*>& variables) {
    const int64_t* table;
    TF_RETURN_IF_ERROR(table_.Get(context, parts, &table));
    return StatusOf(gpu::ThresholdDecodeAdd({parts, table}, rows, scale, factor, variables,
                                            StreamOf(context)));
  }

  absl::Status Update(OpKernelContext* context, const Parts& parts, const ThresholdRows& rows,
                      ThresholdUpdate update, const std::vector<void*>& variables) {
    const int64_t* table;
    TF_RETURN_IF_ERROR(table_.Get(context, parts, &table));
    return StatusOf(
        gpu::UpdateVariables({parts, table}, rows, update, variables, StreamOf(context)));
  }

 private:
  DeviceTable table_;
};

// Values on a device are not checked before the kernels run.
absl::Status CheckMessages(const ThresholdOnGpu&, const ThresholdRows& rows, const Parts&) {
  if (rows.num_rows == 0 || rows.num_words >= kHeaderWords) return absl::OkStatus();
  return errors::InvalidArgument("Messages must have ", int{kHeaderWords},
                                 " words or more. Received: ", rows.num_words, " words.");
}

#endif  // TF_ONEBIT_GPU

absl::Status CheckMessages(const ThresholdOnCpu&, const ThresholdRows& rows, const Parts& parts) {
  return CheckMessages(rows, parts);
}

template <typename Device, typename T>
class ThresholdEncodeOp : public OpKernel {
 public:
  explicit ThresholdEncodeOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, GetParts(*context, Device::kStripeSize, &parts_));
    OP_REQUIRES_OK(context, context->GetAttr("pad", &pad_));
    OP_REQUIRES_OK(context, context->GetAttr("decay", &decay_));
    OP_REQUIRES(context, decay_ > 0 && decay_ <= 1,
                errors::InvalidArgument("decay must be above 0 and at most 1. Received: decay=",
                                        decay_, "."));
  }

  // As in OneBitEncode, the executor would otherwise queue it behind the rest of the backward pass.
  bool IsExpensive() override { return false; }

  void Compute(OpKernelContext* context) override {
    OpInputList gradients;
    OP_REQUIRES_OK(context, context->input_list("gradients", &gradients));
    OP_REQUIRES_OK(context, CheckSize("gradients", gradients.size(), parts_.num_tensors()));
    for (int t = 0; t < gradients.size(); ++t) {
      OP_REQUIRES_OK(context,
                     CheckSize("gradient", gradients[t].NumElements(), parts_.tensor_size(t)));
    }
    const int first_scalar = gradients.size() + 1;
    for (int i = first_scalar; i < first_scalar + 4; ++i) {
      OP_REQUIRES_OK(context, CheckSize("threshold, magnitude, step and capacity",
                                        context->input(i).NumElements(), 1));
    }
    const int64_t capacity = context->input(first_scalar + 3).flat<int64_t>()(0);
    OP_REQUIRES(context, capacity >= 0 && capacity <= kMaxPartSize,
                errors::InvalidArgument("capacity must be a number of values, at most 2^31. ",
                                        "Received: capacity=", capacity, "."));
    LockedVariable residual;
    OP_REQUIRES_OK(context,
                   residual.Open(context, gradients.size(), "residual", parts_.size()));
    const auto scalar = [&](int i) {
      return static_cast<const float*>(context->input(first_scalar + i).data());
    };
    OP_REQUIRES_OK(context,
                   device_.Encode(context, parts_, Storage<T>::kType, PointersOf(gradients),
                                  residual.floats(), scalar(0), scalar(1), scalar(2), decay_,
                                  capacity, pad_));
  }

 private:
  Parts parts_;
  bool pad_;
  float decay_;
  Device device_;
};

template <typename Device, typename T>
class ThresholdDecodeSumOp : public OpKernel {
 public:
  explicit ThresholdDecodeSumOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, GetParts(*context, Device::kStripeSize, &parts_));
    OP_REQUIRES_OK(context, context->GetAttr("scale", &scale_));
  }

  void Compute(OpKernelContext* context) override {
    ThresholdRows rows;
    OP_REQUIRES_OK(context, GetRows(context->input(0), parts_, &rows));
    OP_REQUIRES_OK(context, CheckMessages(device_, rows, parts_));
    OP_REQUIRES_OK(context,
                   CheckSize("gradients", context->num_outputs(), parts_.num_tensors()));
    std::vector<void*> gradients(context->num_outputs());
    for (int t = 0; t < context->num_outputs(); ++t) {
      const TensorShape shape = context->input(1 + t).shape();
      OP_REQUIRES_OK(context,
                     CheckSize("gradient", shape.num_elements(), parts_.tensor_size(t)));
      Tensor* gradient;
      OP_REQUIRES_OK(context,
                     context->forward_input_or_allocate_output({1 + t}, t, shape, &gradient));
      gradients[t] = gradient->data();
    }
    OP_REQUIRES_OK(context, device_.DecodeSum(context, parts_, Storage<T>::kType, rows, scale_,
                                              gradients));
  }

 private:
  Parts parts_;
  float scale_;
  Device device_;
};

absl::Status Open(OpKernelContext* context, const Parts& parts, LockedVariables* variables,
                  const std::vector<int64_t>& begins = {}) {
  const auto sizes = [&](int t) { return parts.tensor_size(t); };
  return variables->Open(context, parts.num_tensors(), sizes, begins);
}

template <typename Device>
class ThresholdApplyOp : public OpKernel {
 public:
  explicit ThresholdApplyOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, GetParts(*context, Device::kStripeSize, &parts_));
    bool clears;
    OP_REQUIRES_OK(context, context->GetAttr("clears", &clears));
    OP_REQUIRES_OK(context, context->GetAttr("begins", &begins_));
    if (!begins_.empty()) {
      OP_REQUIRES_OK(context, CheckSize("begins", begins_.size(), parts_.num_tensors()));
    }
    for (int64_t begin : begins_) {
      OP_REQUIRES(context, begin >= 0,
                  tensorflow::errors::InvalidArgument(
                      "begins must be places in variables. Received: ", begin, "."));
    }
    update_ = clears ? ThresholdUpdate::kClear : ThresholdUpdate::kSubtract;
  }

  void Compute(OpKernelContext* context) override {
    const int num_variables = context->num_inputs() - 1;
    ThresholdRows rows;
    OP_REQUIRES_OK(context, GetRows(context->input(num_variables), parts_, &rows));
    OP_REQUIRES_OK(context, CheckMessages(device_, rows, parts_));
    LockedVariables variables;
    OP_REQUIRES_OK(context, Open(context, parts_, &variables, begins_));
    OP_REQUIRES_OK(context, device_.Update(context, parts_, rows, update_, variables.values()));
  }

 private:
  Parts parts_;
  std::vector<int64_t> begins_;
  ThresholdUpdate update_;
  Device device_;
};

template <typename Device>
class ThresholdDecodeAddOp : public OpKernel {
 public:
  explicit ThresholdDecodeAddOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, GetParts(*context, Device::kStripeSize, &parts_));
    OP_REQUIRES_OK(context, context->GetAttr("scale", &scale_));
  }

  void Compute(OpKernelContext* context) override {
    const int num_variables = context->num_inputs() - 2;
    const Tensor& factor = context->input(num_variables + 1);
    ThresholdRows rows;
    OP_REQUIRES_OK(context, GetRows(context->input(num_variables), parts_, &rows));
    OP_REQUIRES_OK(context, CheckMessages(device_, rows, parts_));
    OP_REQUIRES_OK(context, CheckSize("factor", factor.NumElements(), 1));
    LockedVariables variables;
    OP_REQUIRES_OK(context, Open(context, parts_, &variables));
    OP_REQUIRES_OK(context, device_.DecodeAdd(context, parts_, rows, scale_,
                                              static_cast<const float*>(factor.data()),
                                              variables.values()));
  }

 private:
  Parts parts_;
  float scale_;
  Device device_;
};

#define REGISTER_FOR(ON, NAME, T)                                                                  \
  REGISTER_KERNEL_BUILDER(Name("TfOnebit>ThresholdEncode")                                         \
                              .Device(NAME)                                                        \
                              .HostMemory("residual")                                              \
                              .HostMemory("capacity")                                              \
                              .TypeConstraint<T>("T"),                                             \
                          ThresholdEncodeOp<ON, T>);                                               \
  REGISTER_KERNEL_BUILDER(Name("TfOnebit>ThresholdDecodeSum").Device(NAME).TypeConstraint<T>("T"), \
                          ThresholdDecodeSumOp<ON, T>)
#define REGISTER(ON, NAME)                                                                      \
  REGISTER_FOR(ON, NAME, float);                                                                \
  REGISTER_FOR(ON, NAME, Eigen::half);                                                          \
  REGISTER_FOR(ON, NAME, Eigen::bfloat16);                                                      \
  REGISTER_KERNEL_BUILDER(Name("TfOnebit>ThresholdApply").Device(NAME).HostMemory("variables"), \
                          ThresholdApplyOp<ON>);                                                \
  REGISTER_KERNEL_BUILDER(                                                                      \
      Name("TfOnebit>ThresholdDecodeAdd").Device(NAME).HostMemory("variables"),                 \
      ThresholdDecodeAddOp<ON>)
TF_ONEBIT_REGISTER(REGISTER, ThresholdOnCpu, ThresholdOnGpu);
#undef REGISTER
#undef REGISTER_FOR

}  // namespace
}  // namespace tf_onebit
