// The ops that code threshold-sparse messages, on the CPU. lib/golomb_rice.h has the code.

#include <algorithm>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

#include "kernels/op_parts.h"
#include "kernels/op_threshold.h"
#include "lib/golomb_rice.h"

namespace tf_onebit {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// A base of the GolombRice ops, which replace the codes of messages behind their headers.
class RecodeBase : public OpKernel {
 public:
  explicit RecodeBase(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, GetParts(*context, Parts::kWhole, &parts_));
  }

 protected:
  // Makes the output of bodies behind the headers of their rows, at least `body_words` long.
  absl::Status Output(OpKernelContext* context, const ThresholdRows& rows,
                      const std::vector<std::vector<uint32_t>>& bodies, int64_t body_words) {
    for (const auto& body : bodies) body_words = std::max<int64_t>(body_words, body.size());
    const int64_t words = kHeaderWords + body_words;
    Tensor* output;
    TF_RETURN_IF_ERROR(context->allocate_output(
        0, {context->input(0).dim_size(0), parts_.num_parts(), words}, &output));
    int32_t* message = WordsOf(output);
    for (int64_t r = 0; r < rows.num_rows; ++r, message += words) {
      int32_t* end = std::copy_n(rows.row(r), kHeaderWords, message);
      end = std::copy(bodies[r].begin(), bodies[r].end(), end);
      message[kWordsWord] = static_cast<int32_t>(end - message);
      std::fill(end, message + words, 0);
    }
    return absl::OkStatus();
  }

  int64_t PartSizeOfRow(int64_t row) const { return parts_.part_size(row % parts_.num_parts()); }

  Parts parts_;
};

class GolombRiceEncodeOp : public RecodeBase {
 public:
  explicit GolombRiceEncodeOp(OpKernelConstruction* context) : RecodeBase(context) {
    OP_REQUIRES_OK(context, context->GetAttr("pad", &pad_));
  }

  void Compute(OpKernelContext* context) override {
    ThresholdRows rows;
    OP_REQUIRES_OK(context, GetRows(context->input(0), parts_, &rows));
    OP_REQUIRES_OK(context, CheckMessages(rows, parts_));
    std::vector<std::vector<uint32_t>> bodies(rows.num_rows);
    int64_t body_words = 0;
    for (int64_t r = 0; r < rows.num_rows; ++r) {
      const int64_t size = PartSizeOfRow(r), count = static_cast<uint32_t>(rows.row(r)[kCountWord]);
      bodies[r].resize(GolombRiceMaxWords(count, size));
      const uint32_t* const codes = CodesOf(rows.row(r) + kHeaderWords);
      bodies[r].resize(GolombRiceEncode(codes, count, bodies[r].data()));
      if (pad_) {
        const int64_t capacity = std::min(size, rows.num_words - kHeaderWords);
        body_words = std::max(body_words, GolombRiceMaxWords(capacity, size));
      }
    }
    OP_REQUIRES_OK(context, Output(context, rows, bodies, body_words));
  }

 private:
  bool pad_;
};

class GolombRiceDecodeOp : public RecodeBase {
 public:
  using RecodeBase::RecodeBase;

  void Compute(OpKernelContext* context) override {
    ThresholdRows rows;
    OP_REQUIRES_OK(context, GetRows(context->input(0), parts_, &rows));
    std::vector<std::vector<uint32_t>> bodies(rows.num_rows);
    for (int64_t r = 0; r < rows.num_rows; ++r) {
      const int32_t* const row = rows.row(r);
      const int64_t size = PartSizeOfRow(r);
      const char* fault = HeaderFault(row, rows.num_words, size);
      if (fault == nullptr) {
        const int64_t count = static_cast<uint32_t>(row[kCountWord]);
        const int64_t words = static_cast<uint32_t>(row[kWordsWord]) - kHeaderWords;
        // A code has at least two bits. So an impossible count takes no memory.
        bodies[r].resize(count > words * (kWordBits / 2) ? 0 : count);
        if (static_cast<int64_t>(bodies[r].size()) != count ||
            !GolombRiceDecode(CodesOf(row + kHeaderWords), words, count, size, bodies[r].data())) {
          fault = "it does not decode to as many ascending indices as it says";
        }
      }
      if (fault != nullptr) {
        context->SetStatus(Corrupt(r, parts_, fault));
        return;
      }
    }
    OP_REQUIRES_OK(context, Output(context, rows, bodies, 0));
  }
};

REGISTER_KERNEL_BUILDER(Name("TfOnebit>GolombRiceEncode").Device(tensorflow::DEVICE_CPU),
                        GolombRiceEncodeOp);
REGISTER_KERNEL_BUILDER(Name("TfOnebit>GolombRiceDecode").Device(tensorflow::DEVICE_CPU),
                        GolombRiceDecodeOp);

}  // namespace
}  // namespace tf_onebit
