// Reads the parts of an op's tensors from its attributes, for kernels and for shape functions.

#ifndef TF_ONEBIT_KERNELS_OP_PARTS_H_
#define TF_ONEBIT_KERNELS_OP_PARTS_H_

#include <cstdint>
#include <vector>

#include "tensorflow/core/platform/errors.h"

#include "lib/parts.h"
#include "lib/threshold.h"

namespace tf_onebit {

// CPU threads work on whole stripes of this many values.
constexpr int64_t kStripeSize = 64 * kBlockSize;

// `Context` is OpKernelConstruction or InferenceContext.
template <typename Context>
absl::Status GetParts(const Context& context, int64_t stripe_size, Parts* parts) {
  std::vector<int64_t> sizes;
  int64_t part_size;
  TF_RETURN_IF_ERROR(context.GetAttr("sizes", &sizes));
  TF_RETURN_IF_ERROR(context.GetAttr("part_size", &part_size));
  for (int64_t size : sizes) {
    if (size < 0) {
      return tensorflow::errors::InvalidArgument(
          "sizes must be numbers of values. Received: ", size, ".");
    }
  }
  if (part_size < 1 || part_size > kMaxPartSize) {
    return tensorflow::errors::InvalidArgument("part_size must be from 1 to 2^31, because an index ",
                                               "has 31 bits. Received: part_size=", part_size, ".");
  }
  *parts = Parts(sizes, part_size, stripe_size);
  return absl::OkStatus();
}

}  // namespace tf_onebit

#endif  // TF_ONEBIT_KERNELS_OP_PARTS_H_
