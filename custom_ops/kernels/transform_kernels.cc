// The ops of transforms on the CPU. What happens to a value is in lib/transforms.h, the loops over
// a block of them in transform_blocks.h.

#include <algorithm>
#include <numeric>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

#include "kernels/op_common.h"
#include "kernels/op_parts.h"
#include "kernels/transform_blocks.h"

namespace tf_onebit {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
namespace errors = tensorflow::errors;

// Calls work(stripe, stripe's index, offset of a block among all values, its size) for all blocks
// of `stripes`, in parallel; those of a stripe in their order.
template <typename Work>
void ForBlocks(OpKernelContext* context, const std::vector<Stripe>& stripes, const Work& work) {
  if (stripes.empty()) return;
  const int64_t count = stripes.size();
  const int64_t size = stripes.back().value + stripes.back().count;
  // A few cycles per value: bandwidth bound.
  ParallelFor(context, count, 1 + 4 * size / count, [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) {
      for (int64_t at = 0; at < stripes[i].count; at += kBlockSize) {
        work(stripes[i], i, stripes[i].value + at, std::min(kBlockSize, stripes[i].count - at));
      }
    }
  });
}

std::vector<Stripe> StripesOfRuns(const std::vector<int64_t>& run_sizes) {
  const int64_t size = std::accumulate(run_sizes.begin(), run_sizes.end(), int64_t{0});
  return StripesOf(Parts(run_sizes, std::max(int64_t{1}, size)));
}

// Opens the state of a gradient in input 0, a variable in input 1.
absl::Status OpenState(OpKernelContext* context, const char* what, LockedVariable* state) {
  return state->Open(context, 1, what, context->input(0).NumElements());
}

// Output 0, like the gradient in input 0, and in its memory if possible.
absl::Status OutputGradient(OpKernelContext* context, float** values) {
  Tensor* output;
  TF_RETURN_IF_ERROR(
      context->forward_input_or_allocate_output({0}, 0, context->input(0).shape(), &output));
  *values = output->flat<float>().data();
  return absl::OkStatus();
}

class AdagradBase : public OpKernel {
 public:
  explicit AdagradBase(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("run_sizes", &run_sizes_));
    for (int64_t size : run_sizes_) {
      OP_REQUIRES(context, size >= 0,
                  errors::InvalidArgument("run_sizes must be numbers of values. Received: ", size,
                                          "."));
      size_ += size;
    }
    stripes_ = StripesOfRuns(run_sizes_);
  }

 protected:
  absl::Status Open(OpKernelContext* context, LockedVariable* average) const {
    TF_RETURN_IF_ERROR(CheckSize("gradient", context->input(0).NumElements(), size_));
    return OpenState(context, "average", average);
  }

  std::vector<int64_t> run_sizes_;
  int64_t size_ = 0;
  std::vector<Stripe> stripes_;
};

class AdagradAccumulateOp : public AdagradBase {
 public:
  using AdagradBase::AdagradBase;

  void Compute(OpKernelContext* context) override {
    const Tensor& share_input = context->input(2);
    OP_REQUIRES(context, share_input.NumElements() == 1,
                errors::InvalidArgument("share must be a scalar. Received: shape=",
                                        share_input.shape().DebugString(), "."));
    const double share = share_input.flat<double>()(0);
    OP_REQUIRES(context, share >= 0 && share <= 1,
                errors::InvalidArgument("share must be from 0 to 1. Received: share=", share, "."));
    LockedVariable average;
    OP_REQUIRES_OK(context, Open(context, &average));
    Tensor* output;
    const int64_t num_runs = run_sizes_.size();
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({num_runs}), &output));
    const float* const gradient = context->input(0).flat<float>().data();
    const auto accumulate = GetTransformBlocks().accumulate;
    std::vector<double> partial(stripes_.size());
    ForBlocks(context, stripes_, [&](const Stripe&, int64_t stripe, int64_t at, int64_t count) {
      partial[stripe] += accumulate(gradient + at, average.at(at), count, static_cast<float>(share));
    });
    auto sums = output->flat<double>();
    sums.setZero();
    for (size_t i = 0; i < stripes_.size(); ++i) sums(stripes_[i].tensor) += partial[i];
  }
};

class AdagradNormalizeOp : public AdagradBase {
 public:
  explicit AdagradNormalizeOp(OpKernelConstruction* context) : AdagradBase(context) {
    OP_REQUIRES_OK(context, context->GetAttr("epsilon", &epsilon_));
    OP_REQUIRES(context, epsilon_ > 0 && IsFinite(epsilon_),
                errors::InvalidArgument("epsilon must be positive. Received: epsilon=", epsilon_,
                                        "."));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& means = context->input(2);
    const int64_t num_runs = run_sizes_.size();
    OP_REQUIRES(context, means.shape() == TensorShape({num_runs}),
                errors::InvalidArgument("means must have one number for each of ", num_runs,
                                        " runs. Received: shape=", means.shape().DebugString(),
                                        "."));
    std::vector<Normalizer> normalizers;
    for (int64_t run = 0; run < num_runs; ++run) {
      const double mean = means.flat<double>()(run);
      OP_REQUIRES(context, mean >= 0 && IsFinite(mean),
                  errors::InvalidArgument("means must be finite and at least 0. Received: means[",
                                          run, "]=", mean, "."));
      normalizers.push_back(NormalizerOf(mean, epsilon_));
    }
    LockedVariable average;
    OP_REQUIRES_OK(context, Open(context, &average));
    const float* const gradient = context->input(0).flat<float>().data();
    float* out;
    OP_REQUIRES_OK(context, OutputGradient(context, &out));
    const auto normalize = GetTransformBlocks().normalize;
    ForBlocks(context, stripes_, [&](const Stripe& stripe, int64_t, int64_t at, int64_t count) {
      normalize(gradient + at, average.at(at), count, normalizers[stripe.tensor], out + at);
    });
  }

 private:
  float epsilon_;
};

class MomentumOp : public OpKernel {
 public:
  explicit MomentumOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("momentum", &momentum_));
    OP_REQUIRES_OK(context, context->GetAttr("nesterov", &nesterov_));
    OP_REQUIRES(context, momentum_ >= 0 && momentum_ < 1,
                errors::InvalidArgument("momentum must be at least 0 and less than 1. Received: ",
                                        "momentum=", momentum_, "."));
  }

  void Compute(OpKernelContext* context) override {
    LockedVariable velocity;
    OP_REQUIRES_OK(context, OpenState(context, "velocity", &velocity));
    const Tensor& input = context->input(0);
    const float* const gradient = input.flat<float>().data();
    float* out;
    OP_REQUIRES_OK(context, OutputGradient(context, &out));
    const auto momentum = GetTransformBlocks().momentum;
    ForBlocks(context, StripesOfRuns({input.NumElements()}),
              [&](const Stripe&, int64_t, int64_t at, int64_t count) {
                momentum(gradient + at, velocity.at(at), count, momentum_, nesterov_, out + at);
              });
  }

 private:
  float momentum_;
  bool nesterov_;
};

REGISTER_KERNEL_BUILDER(Name("TfOnebit>AdagradAccumulate").Device(tensorflow::DEVICE_CPU),
                        AdagradAccumulateOp);
REGISTER_KERNEL_BUILDER(Name("TfOnebit>AdagradNormalize").Device(tensorflow::DEVICE_CPU),
                        AdagradNormalizeOp);
REGISTER_KERNEL_BUILDER(Name("TfOnebit>Momentum").Device(tensorflow::DEVICE_CPU), MomentumOp);

}  // namespace
}  // namespace tf_onebit
