// Reads the layout of an op from its attributes, for kernels and for shape functions.

#ifndef TF_ONEBIT_KERNELS_OP_LAYOUT_H_
#define TF_ONEBIT_KERNELS_OP_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "tensorflow/core/platform/errors.h"

#include "lib/layout.h"

namespace tf_onebit {

// `Context` is OpKernelConstruction or InferenceContext.
template <typename Context>
absl::Status GetLayout(const Context& context, Layout* layout) {
  std::vector<int64_t> sizes, row_sizes, column_sizes, shard_starts;
  TF_RETURN_IF_ERROR(context.GetAttr("sizes", &sizes));
  TF_RETURN_IF_ERROR(context.GetAttr("row_sizes", &row_sizes));
  TF_RETURN_IF_ERROR(context.GetAttr("column_sizes", &column_sizes));
  TF_RETURN_IF_ERROR(context.GetAttr("shard_starts", &shard_starts));
  if (!Layout::Valid(sizes, row_sizes, column_sizes, shard_starts)) {
    return tensorflow::errors::InvalidArgument(
        "sizes, row_sizes, column_sizes and shard_starts do not describe a layout. They come from "
        "tf_onebit._layout.Layout: pass its attributes unchanged.");
  }
  *layout = Layout(sizes, row_sizes, column_sizes, shard_starts);
  return absl::OkStatus();
}

template <typename Context>
absl::Status GetRank(const Context& context, const Layout& layout, int64_t* rank) {
  TF_RETURN_IF_ERROR(context.GetAttr("rank", rank));
  if (*rank >= layout.num_shards()) {
    return tensorflow::errors::InvalidArgument("rank must be less than the number of shards, ",
                                               layout.num_shards(), ". Received: rank=", *rank,
                                               ".");
  }
  return absl::OkStatus();
}

}  // namespace tf_onebit

#endif  // TF_ONEBIT_KERNELS_OP_LAYOUT_H_
