// The ops of transforms on the CPU. lib/transforms.h has the mathematics of a value, and
// transform_blocks.h the loops over a block of values. For files that include TensorFlow.

#ifndef TF_ONEBIT_KERNELS_TRANSFORM_CPU_H_
#define TF_ONEBIT_KERNELS_TRANSFORM_CPU_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/errors.h"

#include "kernels/op_common.h"
#include "kernels/op_parts.h"
#include "kernels/transform_blocks.h"

namespace tf_onebit {

class TransformsOnCpu {
 public:
  static constexpr int64_t kStripeSize = tf_onebit::kStripeSize;

  absl::Status Accumulate(tensorflow::OpKernelContext* context, const Parts& runs,
                          const float* gradient, const double* share, float* average,
                          double* sums) {
    if (!(*share >= 0 && *share <= 1)) {
      return tensorflow::errors::InvalidArgument("share must be from 0 to 1. Received: share=",
                                                 *share, ".");
    }
    const auto accumulate = GetTransformBlocks().accumulate;
    std::vector<double> of_blocks(runs.num_blocks());
    ForBlocks(context, runs, [&](const Stripe&, int64_t block, int64_t at, int64_t count) {
      of_blocks[block] =
          accumulate(gradient + at, average + at, count, static_cast<float>(*share));
    });
    const double* of_run = of_blocks.data();
    for (int64_t run = 0; run < runs.num_tensors(); ++run) {
      const int64_t blocks = CeilDiv(runs.tensor_size(run), kBlockSize);
      sums[run] = SumOfMany(of_run, blocks);
      of_run += blocks;
    }
    return absl::OkStatus();
  }

  absl::Status Normalize(tensorflow::OpKernelContext* context, const Parts& runs,
                         const float* gradient, const float* average, const double* means,
                         float epsilon, float* out) {
    std::vector<Normalizer> normalizers;
    for (int64_t run = 0; run < runs.num_tensors(); ++run) {
      if (!(means[run] >= 0 && IsFinite(means[run]))) {
        return tensorflow::errors::InvalidArgument(
            "means must be finite and at least 0. Received: means[", run, "]=", means[run], ".");
      }
      normalizers.push_back(NormalizerOf(means[run], epsilon));
    }
    const auto normalize = GetTransformBlocks().normalize;
    ForBlocks(context, runs, [&](const Stripe& stripe, int64_t, int64_t at, int64_t count) {
      normalize(gradient + at, average + at, count, normalizers[stripe.tensor], out + at);
    });
    return absl::OkStatus();
  }

  absl::Status Momentum(tensorflow::OpKernelContext* context, int64_t count, const float* gradient,
                        float* velocity, MomentumRule rule, const float* factor, float* out) {
    const auto move = GetTransformBlocks().momentum;
    ForBlocks(context, count, [&](int64_t at, int64_t size) {
      move(gradient + at, velocity + at, size, rule, *factor, out + at);
    });
    return absl::OkStatus();
  }

  absl::Status Adam(tensorflow::OpKernelContext* context, int64_t count, const float* gradient,
                    float* average, float* square, AdamRule rule, AdamStepAt at_step,
                    float* out) {
    const auto move = GetTransformBlocks().adam;
    const AdamStep step = Read(at_step);
    ForBlocks(context, count, [&](int64_t at, int64_t size) {
      move(gradient + at, average + at, square + at, size, rule, step, out + at);
    });
    return absl::OkStatus();
  }

 private:
  // Calls work(offset, size) for all blocks of `count` values, in parallel.
  template <typename Work>
  static void ForBlocks(tensorflow::OpKernelContext* context, int64_t count, const Work& work) {
    const Parts whole({count}, Parts::kWhole, kStripeSize);
    ForBlocks(context, whole, [&](const Stripe&, int64_t, int64_t at, int64_t size) {
      work(at, size);
    });
  }

  // Calls work(stripe, block's index, its offset among all values, its size) for all blocks, in
  // parallel.
  template <typename Work>
  static void ForBlocks(tensorflow::OpKernelContext* context, const Parts& runs, const Work& work) {
    const std::vector<Stripe>& stripes = runs.stripes();
    if (stripes.empty()) return;
    const int64_t num_stripes = stripes.size();
    // A few cycles per value: bandwidth bound.
    ParallelFor(context, num_stripes, 1 + 4 * runs.size() / num_stripes,
                [&](int64_t first, int64_t end) {
                  for (int64_t i = first; i < end; ++i) {
                    const Stripe& stripe = stripes[i];
                    for (int64_t at = 0; at < stripe.count; at += kBlockSize) {
                      work(stripe, stripe.first_block + at / kBlockSize, stripe.value + at,
                           std::min(kBlockSize, stripe.count - at));
                    }
                  }
                });
  }
};

}  // namespace tf_onebit

#endif  // TF_ONEBIT_KERNELS_TRANSFORM_CPU_H_
