// How a list of tensors is cut into parts with a message each, and into stripes for threads.

#ifndef TF_ONEBIT_KERNELS_OP_PARTS_H_
#define TF_ONEBIT_KERNELS_OP_PARTS_H_

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "tensorflow/core/platform/errors.h"

#include "lib/lanes.h"
#include "lib/threshold.h"

namespace tf_onebit {

// Values are numbered through all tensors. Part p is the run of `part_size` of them that starts at
// p * part_size; the last may be shorter.
class Parts {
 public:
  Parts() = default;
  Parts(const std::vector<int64_t>& sizes, int64_t part_size)
      : sizes_(sizes),
        size_(std::accumulate(sizes.begin(), sizes.end(), int64_t{0})),
        part_size_(part_size) {}

  int64_t num_tensors() const { return static_cast<int64_t>(sizes_.size()); }
  int64_t tensor_size(int64_t tensor) const { return sizes_[tensor]; }
  int64_t size() const { return size_; }
  // One at least, so that there is a message also about nothing.
  int64_t num_parts() const {
    return std::max(int64_t{1}, (size_ + part_size_ - 1) / part_size_);
  }
  int64_t part_begin(int64_t part) const { return part * part_size_; }
  int64_t part_size(int64_t part) const {
    return std::min(part_size_, size_ - part_begin(part));
  }

 private:
  std::vector<int64_t> sizes_;
  int64_t size_ = 0, part_size_ = 1;
};

// A run of values of one tensor and one part. Threads work on whole stripes, which are the same for
// any number of threads: so are sums over them.
struct Stripe {
  int64_t tensor;
  int64_t offset;       // of its first value in the tensor
  int64_t value;        // of its first value among all
  int64_t part;
  int64_t count;
};

inline std::vector<Stripe> StripesOf(const Parts& parts) {
  constexpr int64_t kStripeSize = 64 * kBlockSize;
  std::vector<Stripe> stripes;
  int64_t value = 0;
  for (int64_t tensor = 0; tensor < parts.num_tensors(); ++tensor) {
    for (int64_t offset = 0; offset < parts.tensor_size(tensor);) {
      const int64_t part = value / parts.part_size(0);
      const int64_t part_end = parts.part_begin(part) + parts.part_size(part);
      const int64_t count =
          std::min({kStripeSize, parts.tensor_size(tensor) - offset, part_end - value});
      stripes.push_back({tensor, offset, value, part, count});
      offset += count;
      value += count;
    }
  }
  return stripes;
}

// `Context` is OpKernelConstruction or InferenceContext.
template <typename Context>
absl::Status GetParts(const Context& context, Parts* parts) {
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
  *parts = Parts(sizes, part_size);
  return absl::OkStatus();
}

}  // namespace tf_onebit

#endif  // TF_ONEBIT_KERNELS_OP_PARTS_H_
