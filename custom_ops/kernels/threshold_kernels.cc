// The threshold ops on the CPU: which values a message is about, and who computes it. The loops
// over a block's values are in threshold_blocks.h.

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

#include "kernels/op_common.h"
#include "kernels/op_parts.h"
#include "kernels/threshold_blocks.h"
#include "lib/golomb_rice.h"
#include "lib/threshold.h"

namespace tf_onebit {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
namespace errors = tensorflow::errors;

// Calls work(stripe, index) for all stripes of a list, in parallel.
template <typename Work>
void ForStripes(OpKernelContext* context, const std::vector<Stripe>& stripes, const Work& work) {
  if (stripes.empty()) return;
  const int64_t count = stripes.size(), values = stripes.back().value + stripes.back().count;
  // About one cycle per value: bandwidth bound.
  ParallelFor(context, count, 1 + values / count, [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) work(stripes[i], i);
    GetThresholdBlocks().finish_streaming();
  });
}

// Messages as rows of `num_words` words each; row r is about part r % num_parts.
struct Rows {
  const int32_t* words;
  int64_t num_rows;
  int64_t num_words;

  const int32_t* row(int64_t r) const { return words + r * num_words; }
};

absl::Status GetRows(const Tensor& messages, const Parts& parts, Rows* rows) {
  if (messages.dims() != 3 || messages.dim_size(1) != parts.num_parts()) {
    return errors::InvalidArgument("messages must have shape [number of messages, ",
                                   parts.num_parts(), ", words]. Received: shape=",
                                   messages.shape().DebugString(),
                                   ". Do all workers exchange the same gradients?");
  }
  *rows = {messages.flat<int32_t>().data(), messages.dim_size(0) * messages.dim_size(1),
           messages.dim_size(2)};
  return absl::OkStatus();
}

absl::Status Corrupt(int64_t row, const Parts& parts, const char* fault) {
  return errors::InvalidArgument("Message ", row / parts.num_parts(), " is corrupt: ", fault,
                                 ". Do all workers run the same version of tf_onebit?");
}

// Checks what came in before anything is written by it.
absl::Status CheckMessages(const Rows& rows, const Parts& parts) {
  for (int64_t r = 0; r < rows.num_rows; ++r) {
    const char* fault = ThresholdMessageFault(rows.row(r), rows.num_words,
                                              parts.part_size(r % parts.num_parts()));
    if (fault != nullptr) return Corrupt(r, parts, fault);
  }
  return absl::OkStatus();
}

CodeRun CodesOfRow(const int32_t* row) {
  const uint32_t* const codes = CodesOf(row + kHeaderWords);
  return {codes, codes + static_cast<uint32_t>(row[kCountWord]),
          FloatOf(static_cast<uint32_t>(row[kStepWord]))};
}

// Where the codes of values from `index` on begin.
const uint32_t* FirstFrom(const CodeRun& run, int64_t index) {
  return std::partition_point(run.next, run.end,
                              [index](uint32_t code) { return IndexOf(code) < index; });
}

template <typename T>
class ThresholdEncodeOp : public OpKernel {
 public:
  using Value = typename Storage<T>::Type;

  explicit ThresholdEncodeOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, GetParts(*context, &parts_));
    OP_REQUIRES_OK(context, context->GetAttr("pad", &pad_));
    stripes_ = StripesOf(parts_);
  }

  // As OneBitEncode: or the executor would queue it behind the rest of the backward pass.
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
    for (int i = first_scalar; i < first_scalar + 3; ++i) {
      OP_REQUIRES_OK(context, CheckSize("threshold, step and capacity",
                                        context->input(i).NumElements(), 1));
    }
    const float threshold = context->input(first_scalar).flat<float>()(0);
    const float step = context->input(first_scalar + 1).flat<float>()(0);
    const int64_t capacity = context->input(first_scalar + 2).flat<int64_t>()(0);
    OP_REQUIRES(context, threshold > 0,
                errors::InvalidArgument("threshold must be positive. Received: threshold=",
                                        threshold, "."));
    OP_REQUIRES(context, step >= 0 && IsFinite(step),
                errors::InvalidArgument("step must be at least 0 and finite. Received: step=", step,
                                        "."));
    OP_REQUIRES(context, capacity >= 0 && capacity <= kMaxPartSize,
                errors::InvalidArgument("capacity must be a number of values, at most 2^31. ",
                                        "Received: capacity=", capacity, "."));
    LockedVariable residual;
    OP_REQUIRES_OK(context,
                   residual.Open(context, gradients.size(), "residual", parts_.size()));

    std::vector<EncodedStripe> encoded(stripes_.size());
    FirstFailure not_finite;
    ForStripes(context, stripes_, [&](const Stripe& stripe, int64_t index) {
      const Value* gradient = reinterpret_cast<const Value*>(
          gradients[stripe.tensor].flat<T>().data());
      if (!Encode(stripe, gradient + stripe.offset, residual.at(stripe.value), threshold,
                  &encoded[index])) {
        not_finite.Report(stripe.tensor);
      }
    });

    std::vector<int64_t> exceeding(parts_.num_parts());
    for (size_t i = 0; i < stripes_.size(); ++i) {
      exceeding[stripes_[i].part] += encoded[i].codes.size();
    }
    int64_t longest = 0;
    for (int64_t count : exceeding) longest = std::max(longest, count);
    const int64_t words = kHeaderWords + (pad_ ? capacity : std::min(capacity, longest));
    Tensor* output;
    OP_REQUIRES_OK(context, context->allocate_output(0, {parts_.num_parts(), words}, &output));
    int32_t* message = output->flat<int32_t>().data();
    auto stripe = encoded.begin();
    for (int64_t part = 0; part < parts_.num_parts(); ++part, message += words) {
      int32_t* end = message + kHeaderWords;
      double squares = 0;
      for (; stripe != encoded.end() && stripes_[stripe - encoded.begin()].part == part; ++stripe) {
        const int64_t room = message + kHeaderWords + capacity - end;
        const int64_t sent = std::min<int64_t>(room, stripe->codes.size());
        end = std::copy_n(stripe->codes.begin(), sent, end);
        squares += stripe->squares;
        for (auto code = stripe->codes.begin() + sent; code != stripe->codes.end(); ++code) {
          // What does not fit waits for the next message.
          float& kept = *residual.at(parts_.part_begin(part) + IndexOf(*code));
          const double before = kept;
          kept += SignedStep(*code, threshold);
          squares += double{kept} * kept - before * before;
        }
      }
      std::fill(end, message + words, 0);
      message[kFlagWord] = not_finite.flag();
      message[kWordsWord] = static_cast<int32_t>(end - message);
      message[kCountWord] = static_cast<int32_t>(end - message - kHeaderWords);
      message[kExceedingWord] = static_cast<int32_t>(exceeding[part]);
      FloatsOf(message)[kStepWord] = step;
      FloatsOf(message)[kSquaresWord] = static_cast<float>(squares);
    }
  }

 private:
  struct EncodedStripe {
    std::vector<uint32_t> codes;
    double squares = 0;
  };

  // Returns whether all values are finite.
  bool Encode(const Stripe& stripe, const Value* gradient, float* residual, float threshold,
              EncodedStripe* encoded) const {
    const auto encode = GetThresholdBlocks().encode(gradient);
    const int64_t first_index = stripe.value - parts_.part_begin(stripe.part);
    bool finite = true;
    for (int64_t begin = 0; begin < stripe.count; begin += kBlockSize) {
      uint32_t codes[kBlockSize];
      const EncodedBlock block =
          encode(gradient + begin, residual + begin, std::min(kBlockSize, stripe.count - begin),
                 threshold, static_cast<uint32_t>(first_index + begin), codes);
      encoded->codes.insert(encoded->codes.end(), codes, codes + block.num_codes);
      encoded->squares += block.sum_of_squares;
      finite &= block.finite;
    }
    return finite;
  }

  Parts parts_;
  std::vector<Stripe> stripes_;
  bool pad_;
};

template <typename T>
class ThresholdDecodeSumOp : public OpKernel {
 public:
  using Value = typename Storage<T>::Type;

  explicit ThresholdDecodeSumOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, GetParts(*context, &parts_));
    OP_REQUIRES_OK(context, context->GetAttr("scale", &scale_));
    stripes_ = StripesOf(parts_);
  }

  void Compute(OpKernelContext* context) override {
    Rows rows;
    OP_REQUIRES_OK(context, GetRows(context->input(0), parts_, &rows));
    OP_REQUIRES_OK(context, CheckMessages(rows, parts_));
    OP_REQUIRES_OK(context,
                   CheckSize("gradients", context->num_outputs(), parts_.num_tensors()));
    std::vector<Value*> gradients(context->num_outputs());
    for (int t = 0; t < context->num_outputs(); ++t) {
      const TensorShape shape = context->input(1 + t).shape();
      OP_REQUIRES_OK(context,
                     CheckSize("gradient", shape.num_elements(), parts_.tensor_size(t)));
      Tensor* gradient;
      OP_REQUIRES_OK(context,
                     context->forward_input_or_allocate_output({1 + t}, t, shape, &gradient));
      gradients[t] = reinterpret_cast<Value*>(gradient->flat<T>().data());
    }
    const bool stream = parts_.size() * static_cast<int64_t>(sizeof(Value)) > kStreamBytes;
    ForStripes(context, stripes_, [&](const Stripe& stripe, int64_t) {
      Decode(rows, stripe, stream, gradients[stripe.tensor] + stripe.offset);
    });
  }

 private:
  void Decode(const Rows& rows, const Stripe& stripe, bool stream, Value* out) const {
    const int64_t first_index = stripe.value - parts_.part_begin(stripe.part);
    std::vector<CodeRun> runs;
    for (int64_t r = stripe.part; r < rows.num_rows; r += parts_.num_parts()) {
      CodeRun run = CodesOfRow(rows.row(r));
      run.next = FirstFrom(run, first_index);
      runs.push_back(run);
    }
    const auto decode = GetThresholdBlocks().decode(out);
    for (int64_t begin = 0; begin < stripe.count; begin += kBlockSize) {
      decode(runs.data(), runs.size(), static_cast<uint32_t>(first_index + begin),
             std::min(kBlockSize, stripe.count - begin), scale_, stream, out + begin);
    }
  }

  Parts parts_;
  std::vector<Stripe> stripes_;
  float scale_;
};

class ThresholdApplyOp : public OpKernel {
 public:
  explicit ThresholdApplyOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, GetParts(*context, &parts_));
  }

  void Compute(OpKernelContext* context) override {
    const int num_variables = context->num_inputs() - 1;
    Rows rows;
    OP_REQUIRES_OK(context, GetRows(context->input(num_variables), parts_, &rows));
    OP_REQUIRES_OK(context, CheckMessages(rows, parts_));
    OP_REQUIRES_OK(context, CheckSize("variables", num_variables, parts_.num_tensors()));
    OP_REQUIRES_OK(context, CheckDistinct(context, num_variables));
    std::vector<LockedVariable> variables(num_variables);
    for (int t = 0; t < num_variables; ++t) {
      OP_REQUIRES_OK(context, variables[t].Open(context, t, "variable", parts_.tensor_size(t)));
    }
    for (int64_t r = 0; r < rows.num_rows; ++r) {
      CodeRun run = CodesOfRow(rows.row(r));
      int64_t first = -parts_.part_begin(r % parts_.num_parts());  // of the variable, in the part
      for (int t = 0; t < num_variables; ++t) {
        const int64_t end = first + parts_.tensor_size(t);
        const uint32_t* const begin = run.next;
        run.next = FirstFrom(run, end);
        Subtract({begin, run.next, run.step}, first, variables[t]);
        first = end;
      }
    }
  }

 private:
  // Far enough ahead of their use: every value is in a line of memory, and mostly a page, of its
  // own.
  static constexpr int64_t kPrefetchCodes = 32;

  static void Subtract(const CodeRun& run, int64_t first, const LockedVariable& variable) {
    for (const uint32_t* code = run.next; code != run.end; ++code) {
      if (run.end - code > kPrefetchCodes) {
        __builtin_prefetch(variable.at(IndexOf(code[kPrefetchCodes]) - first), 1);
      }
      *variable.at(IndexOf(*code) - first) -= SignedStep(*code, run.step);
    }
  }

  // A variable that is locked twice would be waited for forever.
  static absl::Status CheckDistinct(OpKernelContext* context, int num_variables) {
    std::set<const tensorflow::Var*> distinct;
    for (int t = 0; t < num_variables; ++t) {
      tensorflow::core::RefCountPtr<tensorflow::Var> variable;
      TF_RETURN_IF_ERROR(LookupResource(context, HandleFromInput(context, t), &variable));
      if (!distinct.insert(variable.get()).second) {
        return errors::InvalidArgument("All variables must be different ones. Received: variables[",
                                       t, "] a second time.");
      }
    }
    return absl::OkStatus();
  }

  Parts parts_;
};

// Replaces the codes of messages, behind their headers: the bodies of GolombRice ops.
class RecodeBase : public OpKernel {
 public:
  explicit RecodeBase(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, GetParts(*context, &parts_));
  }

 protected:
  // Bodies beside their rows' headers; at least `body_words` long.
  absl::Status Output(OpKernelContext* context, const Rows& rows,
                      const std::vector<std::vector<uint32_t>>& bodies, int64_t body_words) {
    for (const auto& body : bodies) body_words = std::max<int64_t>(body_words, body.size());
    const int64_t words = kHeaderWords + body_words;
    Tensor* output;
    TF_RETURN_IF_ERROR(context->allocate_output(
        0, {context->input(0).dim_size(0), parts_.num_parts(), words}, &output));
    int32_t* message = output->flat<int32_t>().data();
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
    Rows rows;
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
    Rows rows;
    OP_REQUIRES_OK(context, GetRows(context->input(0), parts_, &rows));
    std::vector<std::vector<uint32_t>> bodies(rows.num_rows);
    for (int64_t r = 0; r < rows.num_rows; ++r) {
      const int32_t* const row = rows.row(r);
      const int64_t size = PartSizeOfRow(r);
      const char* fault = HeaderFault(row, rows.num_words, size);
      if (fault == nullptr) {
        const int64_t count = static_cast<uint32_t>(row[kCountWord]);
        const int64_t words = static_cast<uint32_t>(row[kWordsWord]) - kHeaderWords;
        // Two bits per code at least: no memory is taken for a count that cannot be.
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

#define REGISTER_FOR(T)                                                                         \
  REGISTER_KERNEL_BUILDER(                                                                      \
      Name("TfOnebit>ThresholdEncode").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"),    \
      ThresholdEncodeOp<T>);                                                                    \
  REGISTER_KERNEL_BUILDER(                                                                      \
      Name("TfOnebit>ThresholdDecodeSum").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"), \
      ThresholdDecodeSumOp<T>)
REGISTER_FOR(float);
REGISTER_FOR(Eigen::half);
REGISTER_FOR(Eigen::bfloat16);
#undef REGISTER_FOR

REGISTER_KERNEL_BUILDER(Name("TfOnebit>ThresholdApply").Device(tensorflow::DEVICE_CPU),
                        ThresholdApplyOp);
REGISTER_KERNEL_BUILDER(Name("TfOnebit>GolombRiceEncode").Device(tensorflow::DEVICE_CPU),
                        GolombRiceEncodeOp);
REGISTER_KERNEL_BUILDER(Name("TfOnebit>GolombRiceDecode").Device(tensorflow::DEVICE_CPU),
                        GolombRiceDecodeOp);

}  // namespace
}  // namespace tf_onebit
