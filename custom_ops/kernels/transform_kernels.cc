// The inputs and outputs of the ops of transforms. Their computation is in transform_cpu.h and
// transform_gpu.h.

#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

#include "kernels/op_common.h"
#include "kernels/op_variables.h"
#include "kernels/transform_cpu.h"
#ifdef TF_ONEBIT_GPU
#include "kernels/transform_gpu.h"
#endif

namespace tf_onebit {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
namespace errors = tensorflow::errors;

#ifdef TF_ONEBIT_GPU

// The counterpart of TransformsOnCpu. It does not check `share` and `means`.
class TransformsOnGpu {
 public:
  static constexpr int64_t kStripeSize = Parts::kWhole;

  absl::Status Accumulate(OpKernelContext* context, const Parts& runs, const float* gradient,
                          const double* share, float* average, double* sums) {
    Scratch scratch;
    const int64_t* table;
    TF_RETURN_IF_ERROR(table_.Get(context, runs, &table));
    TF_RETURN_IF_ERROR(scratch.Allocate(context, gpu::AdagradScratchBytes(runs)));
    return StatusOf(gpu::AdagradAccumulate(runs, table, gradient, share, average, sums,
                                           scratch.data(), StreamOf(context)));
  }

  absl::Status Normalize(OpKernelContext* context, const Parts& runs, const float* gradient,
                         const float* average, const double* means, float epsilon, float* out) {
    return StatusOf(
        gpu::AdagradNormalize(runs, gradient, average, means, epsilon, out, StreamOf(context)));
  }

  absl::Status Momentum(OpKernelContext* context, int64_t count, const float* gradient,
                        float* velocity, MomentumRule rule, const float* factor, float* out) {
    return StatusOf(
        gpu::Momentum(count, gradient, velocity, rule, factor, out, StreamOf(context)));
  }

  absl::Status Adam(OpKernelContext* context, int64_t count, const float* gradient, float* average,
                    float* square, AdamRule rule, AdamStepAt step, float* out) {
    return StatusOf(gpu::Adam(count, gradient, average, square, rule, step, out,
                              StreamOf(context)));
  }

 private:
  DeviceTable table_;
};

#endif  // TF_ONEBIT_GPU

const float* Floats(const Tensor& tensor) { return static_cast<const float*>(tensor.data()); }
const double* Doubles(const Tensor& tensor) { return static_cast<const double*>(tensor.data()); }

// Opens the state of a gradient: input 0 is the gradient, input 1 the variable.
absl::Status OpenState(OpKernelContext* context, const char* what, LockedVariable* state) {
  return state->Open(context, 1, what, context->input(0).NumElements());
}

// Makes output 0, like the gradient in input 0, and in its memory if possible.
absl::Status OutputGradient(OpKernelContext* context, float** values) {
  Tensor* output;
  TF_RETURN_IF_ERROR(
      context->forward_input_or_allocate_output({0}, 0, context->input(0).shape(), &output));
  *values = static_cast<float*>(output->data());
  return absl::OkStatus();
}

template <typename Device>
class AdagradBase : public OpKernel {
 public:
  explicit AdagradBase(OpKernelConstruction* context) : OpKernel(context) {
    std::vector<int64_t> run_sizes;
    OP_REQUIRES_OK(context, context->GetAttr("run_sizes", &run_sizes));
    for (int64_t size : run_sizes) {
      OP_REQUIRES(context, size >= 0,
                  errors::InvalidArgument("run_sizes must be numbers of values. Received: ", size,
                                          "."));
    }
    runs_ = Parts(run_sizes, Parts::kWhole, Device::kStripeSize);
  }

 protected:
  absl::Status Open(OpKernelContext* context, LockedVariable* average) const {
    TF_RETURN_IF_ERROR(CheckSize("gradient", context->input(0).NumElements(), runs_.size()));
    return OpenState(context, "average", average);
  }

  // Runs of values, one after another, as tensors of one part.
  Parts runs_;
  Device device_;
};

template <typename Device>
class AdagradAccumulateOp : public AdagradBase<Device> {
 public:
  using AdagradBase<Device>::AdagradBase;

  void Compute(OpKernelContext* context) override {
    const Tensor& share = context->input(2);
    OP_REQUIRES(context, share.NumElements() == 1,
                errors::InvalidArgument("share must be a scalar. Received: shape=",
                                        share.shape().DebugString(), "."));
    LockedVariable average;
    OP_REQUIRES_OK(context, this->Open(context, &average));
    Tensor* sums;
    OP_REQUIRES_OK(context, context->allocate_output(0, {this->runs_.num_tensors()}, &sums));
    OP_REQUIRES_OK(context, this->device_.Accumulate(
                                context, this->runs_, Floats(context->input(0)), Doubles(share),
                                average.floats(), static_cast<double*>(sums->data())));
  }
};

template <typename Device>
class AdagradNormalizeOp : public AdagradBase<Device> {
 public:
  explicit AdagradNormalizeOp(OpKernelConstruction* context) : AdagradBase<Device>(context) {
    OP_REQUIRES_OK(context, context->GetAttr("epsilon", &epsilon_));
    OP_REQUIRES(context, epsilon_ > 0 && IsFinite(epsilon_),
                errors::InvalidArgument("epsilon must be positive. Received: epsilon=", epsilon_,
                                        "."));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& means = context->input(2);
    const int64_t num_runs = this->runs_.num_tensors();
    OP_REQUIRES(context, means.shape() == TensorShape({num_runs}),
                errors::InvalidArgument("means must have one number for each of ", num_runs,
                                        " runs. Received: shape=", means.shape().DebugString(),
                                        "."));
    LockedVariable average;
    OP_REQUIRES_OK(context, this->Open(context, &average));
    const float* const gradient = Floats(context->input(0));
    float* out;
    OP_REQUIRES_OK(context, OutputGradient(context, &out));
    OP_REQUIRES_OK(context,
                   this->device_.Normalize(context, this->runs_, gradient, average.floats(),
                                           Doubles(means), epsilon_, out));
  }

 private:
  float epsilon_;
};

// The ops that move the moments of a worker. Its message waits for them, so they must not queue
// behind the rest of the backward pass.
class MomentsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  bool IsExpensive() override { return false; }

 protected:
  // Returns an input of one number.
  static absl::Status GetScalar(OpKernelContext* context, const char* name, const float** value) {
    const Tensor* input;
    TF_RETURN_IF_ERROR(context->input(name, &input));
    *value = Floats(*input);
    if (input->NumElements() == 1) return absl::OkStatus();
    return errors::InvalidArgument(name, " must be a scalar. Received: shape=",
                                   input->shape().DebugString(), ".");
  }
};

template <typename Device>
class MomentumOp : public MomentsOp {
 public:
  explicit MomentumOp(OpKernelConstruction* context) : MomentsOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("momentum", &rule_.momentum));
    OP_REQUIRES_OK(context, context->GetAttr("nesterov", &rule_.nesterov));
    OP_REQUIRES(context, rule_.momentum >= 0 && rule_.momentum < 1,
                errors::InvalidArgument("momentum must be at least 0 and less than 1. Received: ",
                                        "momentum=", rule_.momentum, "."));
  }

  void Compute(OpKernelContext* context) override {
    const float* factor;
    OP_REQUIRES_OK(context, GetScalar(context, "factor", &factor));
    LockedVariable velocity;
    OP_REQUIRES_OK(context, OpenState(context, "velocity", &velocity));
    const int64_t count = context->input(0).NumElements();
    const float* const gradient = Floats(context->input(0));
    float* out;
    OP_REQUIRES_OK(context, OutputGradient(context, &out));
    OP_REQUIRES_OK(context, device_.Momentum(context, count, gradient, velocity.floats(), rule_,
                                             factor, out));
  }

 private:
  MomentumRule rule_;
  Device device_;
};

template <typename Device>
class AdamOp : public MomentsOp {
 public:
  explicit AdamOp(OpKernelConstruction* context) : MomentsOp(context) {
    float share, share_of_square, epsilon;
    OP_REQUIRES_OK(context, GetShare(context, "share_of_gradient", "beta_1", &share));
    OP_REQUIRES_OK(context, GetShare(context, "share_of_square", "beta_2", &share_of_square));
    OP_REQUIRES_OK(context, context->GetAttr("epsilon", &epsilon));
    OP_REQUIRES(context, epsilon >= 0 && IsFinite(epsilon),
                errors::InvalidArgument("epsilon must be at least 0. Received: epsilon=", epsilon,
                                        "."));
    rule_ = MakeAdamRule(share, share_of_square, epsilon);
  }

  void Compute(OpKernelContext* context) override {
    AdamStepAt step;
    OP_REQUIRES_OK(context, GetScalar(context, "factor", &step.factor));
    OP_REQUIRES_OK(context, GetScalar(context, "noise", &step.noise));
    OP_REQUIRES_OK(context, GetScalar(context, "unbias", &step.unbias));
    const int64_t count = context->input(0).NumElements();
    const float* const gradient = Floats(context->input(0));
    LockedVariables moments;
    OP_REQUIRES_OK(context, moments.Open(context, 2, [&](int) { return count; }));
    float* out;
    OP_REQUIRES_OK(context, OutputGradient(context, &out));
    OP_REQUIRES_OK(context,
                   device_.Adam(context, count, gradient, static_cast<float*>(moments.values()[0]),
                                static_cast<float*>(moments.values()[1]), rule_, step, out));
  }

 private:
  // A share is what Adam's `decay` leaves to the new value.
  static absl::Status GetShare(OpKernelConstruction* context, const char* name, const char* decay,
                               float* share) {
    TF_RETURN_IF_ERROR(context->GetAttr(name, share));
    if (*share >= 0 && *share <= 1) return absl::OkStatus();
    return errors::InvalidArgument(decay, " must be from 0 to 1. Received: 1 - ", decay, "=",
                                   *share, ".");
  }

  AdamRule rule_;
  Device device_;
};

#define REGISTER(ON, NAME)                                                                       \
  REGISTER_KERNEL_BUILDER(Name("TfOnebit>AdagradAccumulate").Device(NAME).HostMemory("average"), \
                          AdagradAccumulateOp<ON>);                                              \
  REGISTER_KERNEL_BUILDER(Name("TfOnebit>AdagradNormalize").Device(NAME).HostMemory("average"),  \
                          AdagradNormalizeOp<ON>);                                               \
  REGISTER_KERNEL_BUILDER(Name("TfOnebit>Momentum").Device(NAME).HostMemory("velocity"),         \
                          MomentumOp<ON>);                                                       \
  REGISTER_KERNEL_BUILDER(Name("TfOnebit>Adam").Device(NAME).HostMemory("variables"),            \
                          AdamOp<ON>)
TF_ONEBIT_REGISTER(REGISTER, TransformsOnCpu, TransformsOnGpu);
#undef REGISTER

}  // namespace
}  // namespace tf_onebit
