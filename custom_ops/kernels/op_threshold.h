// Common parts of the ops on threshold-sparse messages. For files that include TensorFlow.

#ifndef TF_ONEBIT_KERNELS_OP_THRESHOLD_H_
#define TF_ONEBIT_KERNELS_OP_THRESHOLD_H_

#include <cstdint>

#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/errors.h"

#include "kernels/op_common.h"
#include "lib/parts.h"
#include "lib/threshold.h"

namespace tf_onebit {

inline absl::Status GetRows(const tensorflow::Tensor& messages, const Parts& parts,
                            ThresholdRows* rows) {
  if (messages.dims() != 3 || messages.dim_size(1) != parts.num_parts()) {
    return tensorflow::errors::InvalidArgument(
        "messages must have shape [number of messages, ", parts.num_parts(),
        ", words]. Received: shape=", messages.shape().DebugString(),
        ". Do all workers exchange the same gradients?");
  }
  *rows = {WordsOf(messages), messages.dim_size(0) * messages.dim_size(1), messages.dim_size(2)};
  return absl::OkStatus();
}

inline absl::Status Corrupt(int64_t row, const Parts& parts, const char* fault) {
  return tensorflow::errors::InvalidArgument(
      "Message ", row / parts.num_parts(), " is corrupt: ", fault,
      ". Do all workers run the same version of tf_onebit?");
}

// Checks the input before anything is written.
inline absl::Status CheckMessages(const ThresholdRows& rows, const Parts& parts) {
  for (int64_t r = 0; r < rows.num_rows; ++r) {
    const char* fault = ThresholdMessageFault(rows.row(r), rows.num_words,
                                              parts.part_size(r % parts.num_parts()));
    if (fault != nullptr) return Corrupt(r, parts, fault);
  }
  return absl::OkStatus();
}

}  // namespace tf_onebit

#endif  // TF_ONEBIT_KERNELS_OP_THRESHOLD_H_
