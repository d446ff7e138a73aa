// The division of a list of tensors into parts with a message each, and into stripes and blocks for
// threads.

#ifndef TF_ONEBIT_LIB_PARTS_H_
#define TF_ONEBIT_LIB_PARTS_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "lib/indexing.h"
#include "lib/lanes.h"

namespace tf_onebit {

// A run of values of one tensor and one part. It is cut into blocks of kBlockSize. The last one may
// be shorter.
struct Stripe {
  int64_t tensor;
  int64_t offset;  // place of its first value in the tensor
  int64_t value;   // place of its first value among all
  int64_t part;
  int64_t count;
  int64_t first_block;  // index of its first block among all
};

// The first block of a part, and its first value.
struct PartStart {
  int64_t block, value;
};

// A single block of values.
struct Block {
  int64_t tensor, part;
  int64_t offset;  // place of its first value in the tensor
  int64_t value;   // place of its first value among all
  int64_t count;
};

// The members of parts that kernels read, as plain data. A device has a copy of the lists.
struct PartsView {
  const Stripe* stripes;
  const PartStart* parts;  // and one more, for the end of the last part
  int64_t num_stripes, num_parts, num_blocks;

  // Returns block `index` in [0, num_blocks).
  TF_ONEBIT_HOST_DEVICE_MEMBER Block block(int64_t index) const {
    const Stripe& stripe =
        stripes[LastBy(index, stripes, num_stripes, &Stripe::first_block)];
    const int64_t begin = (index - stripe.first_block) * kBlockSize, left = stripe.count - begin;
    return {stripe.tensor, stripe.part, stripe.offset + begin, stripe.value + begin,
            left < kBlockSize ? left : kBlockSize};
  }
};

// Values are numbered through all tensors. Part p is the run of `part_size` values that starts at p
// * part_size. The last part may be shorter.
class Parts {
 public:
  static constexpr int64_t kWhole = std::numeric_limits<int64_t>::max();

  Parts() = default;
  // No stripe has more than `stripe_size` values, which is a multiple of kBlockSize, or kWhole.
  Parts(const std::vector<int64_t>& sizes, int64_t part_size, int64_t stripe_size)
      : sizes_(sizes),
        size_(std::accumulate(sizes.begin(), sizes.end(), int64_t{0})),
        part_size_(part_size) {
    int64_t value = 0;
    for (int64_t tensor = 0; tensor < num_tensors(); ++tensor) {
      for (int64_t offset = 0; offset < sizes[tensor];) {
        const int64_t part = value / part_size;
        const int64_t left = part_begin(part) + this->part_size(part) - value;
        const int64_t count = std::min({stripe_size, sizes[tensor] - offset, left});
        if (value == part_begin(part)) parts_.push_back({num_blocks_, value});
        stripes_.push_back({tensor, offset, value, part, count, num_blocks_});
        num_blocks_ += CeilDiv(count, kBlockSize);
        offset += count;
        value += count;
      }
    }
    if (parts_.empty()) parts_.push_back({0, 0});
    parts_.push_back({num_blocks_, value});
  }

  int64_t num_tensors() const { return static_cast<int64_t>(sizes_.size()); }
  int64_t tensor_size(int64_t tensor) const { return sizes_[tensor]; }
  int64_t size() const { return size_; }
  // There is at least one part, so that no values have a message, too.
  int64_t num_parts() const {
    return std::max(int64_t{1}, size_ / part_size_ + (size_ % part_size_ != 0));
  }
  int64_t part_begin(int64_t part) const { return part * part_size_; }
  int64_t part_size(int64_t part) const {
    return std::min(part_size_, size_ - part_begin(part));
  }
  const std::vector<Stripe>& stripes() const { return stripes_; }
  int64_t num_blocks() const { return num_blocks_; }

  // `table` has all lists one after another, for a copy on a device. The view has the lists of that
  // copy.
  std::vector<int64_t> table() const {
    std::vector<int64_t> table;
    AppendItems(stripes_, &table);
    AppendItems(parts_, &table);
    return table;
  }
  PartsView view(const int64_t* table) const {
    const Stripe* const stripes = reinterpret_cast<const Stripe*>(table);
    return {stripes, reinterpret_cast<const PartStart*>(stripes + stripes_.size()),
            static_cast<int64_t>(stripes_.size()), num_parts(), num_blocks_};
  }

 private:
  std::vector<int64_t> sizes_;
  int64_t size_ = 0, part_size_ = 1, num_blocks_ = 0;
  std::vector<Stripe> stripes_;
  std::vector<PartStart> parts_;
};

}  // namespace tf_onebit

#endif  // TF_ONEBIT_LIB_PARTS_H_
