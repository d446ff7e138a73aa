// The one-bit ops on the CPU: what a column is, where its message lies and who computes it. The
// loops over a column's values are in one_bit_columns.h.

#include <cmath>
#include <string>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

#include "kernels/one_bit_columns.h"
#include "kernels/op_common.h"
#include "kernels/op_layout.h"

namespace tf_onebit {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
namespace errors = tensorflow::errors;

// Columns are handed to threads in blocks of a fixed number, so that sums over blocks have the
// same bits for any number of threads.
constexpr int64_t kColumnsPerBlock = 32;

// Calls work(first_column, end_column, block) for blocks of the columns [begin, end), in parallel.
template <typename Work>
void ForBlocks(OpKernelContext* context, const Layout& layout, int64_t begin, int64_t end,
               const Work& work) {
  if (begin == end) return;
  const int64_t blocks = CeilDiv(end - begin, kColumnsPerBlock);
  const int64_t values = layout.column(end).value - layout.column(begin).value;
  // About one cycle per value: bandwidth bound.
  ParallelFor(context, blocks, CeilDiv(values, blocks), [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const int64_t column = begin + block * kColumnsPerBlock;
      work(column, std::min(end, column + kColumnsPerBlock), block);
    }
    GetOneBitColumns().finish_streaming();
  });
}

// Where a shard's message has the levels and the codes of a column.
class MessageMap {
 public:
  MessageMap(const Layout& layout, int64_t shard)
      : levels_at_(layout.levels_at() - 2 * layout.shard_start(shard)),
        codes_at_(layout.codes_at() - layout.ShardBegin(shard).word) {}
  int64_t levels(int64_t column) const { return levels_at_ + 2 * column; }
  int64_t codes(const Column& column) const { return codes_at_ + column.word; }

 private:
  int64_t levels_at_, codes_at_;
};

// Zeroes what the levels and codes of this shard leave of a message: shards differ by a column.
void ZeroPadding(const Layout& layout, int64_t shard, int32_t* message) {
  const int64_t levels_end = layout.levels_at() + 2 * layout.shard_columns(shard);
  const int64_t codes_end =
      layout.codes_at() + layout.ShardEnd(shard).word - layout.ShardBegin(shard).word;
  std::fill(message + levels_end, message + layout.codes_at(), 0);
  std::fill(message + codes_end, message + layout.plain_at(), 0);
}

// The sum over the workers of the values that travel in full precision, in the order of ranks.
absl::Status OutputPlain(OpKernelContext* context, int output, const Layout& layout,
                         const int32_t* messages) {
  Tensor* tensor;
  TF_RETURN_IF_ERROR(context->allocate_output(output, {layout.plain_size()}, &tensor));
  float* plain = tensor->flat<float>().data();
  std::fill(plain, plain + layout.plain_size(), 0.0f);
  for (int64_t k = 0; k < layout.num_shards(); ++k) {
    const float* values = FloatsOf(messages + k * layout.worker_message_words() + layout.plain_at());
    for (int64_t i = 0; i < layout.plain_size(); ++i) plain[i] += values[i];
  }
  return absl::OkStatus();
}

absl::Status CheckMessages(const Tensor& messages, int64_t shards, int64_t words) {
  if (messages.shape() == TensorShape({shards, words})) return absl::OkStatus();
  return errors::InvalidArgument("messages must have shape [", shards, ", ", words,
                                 "], as the layout says. Received: shape=",
                                 messages.shape().DebugString(),
                                 ". Do all workers use the same layout?");
}

class OneBitEncodeBase : public OpKernel {
 public:
  explicit OneBitEncodeBase(OpKernelConstruction* context) : OpKernel(context) {
    std::string levels;
    OP_REQUIRES_OK(context, GetLayout(*context, &layout_));
    OP_REQUIRES_OK(context, context->GetAttr("levels", &levels));
    OP_REQUIRES_OK(context, context->GetAttr("error_feedback", &error_feedback_));
    rule_ = levels == "mean" ? LevelRule::kMean : LevelRule::kSymmetric;
  }

 protected:
  absl::Status OutputSumOfSquares(OpKernelContext* context, const std::vector<double>& blocks) {
    Tensor* output;
    TF_RETURN_IF_ERROR(context->allocate_output(1, {}, &output));
    double sum = 0;
    for (double block : blocks) sum += block;
    output->scalar<float>()() = static_cast<float>(sum);
    return absl::OkStatus();
  }

  Layout layout_;
  LevelRule rule_;
  bool error_feedback_;
};

template <typename T>
class OneBitEncodeOp : public OneBitEncodeBase {
 public:
  using Value = typename Storage<T>::Type;
  using OneBitEncodeBase::OneBitEncodeBase;

  // Or the executor would queue it behind the rest of the backward pass, which is to overlap with
  // the sending of its message.
  bool IsExpensive() override { return false; }

  void Compute(OpKernelContext* context) override {
    OpInputList gradients;
    OP_REQUIRES_OK(context, context->input_list("gradients", &gradients));
    OP_REQUIRES_OK(context, CheckSize("gradients", gradients.size(), layout_.num_tensors()));
    for (int t = 0; t < gradients.size(); ++t) {
      OP_REQUIRES_OK(context, CheckSize("gradient", gradients[t].NumElements(),
                                        layout_.tensor_size(t)));
    }
    LockedVariable residual;
    if (error_feedback_) {
      OP_REQUIRES_OK(context, residual.Open(context, gradients.size(), "residual", layout_.size()));
    }
    const int64_t words = layout_.worker_message_words();
    Tensor* output;
    OP_REQUIRES_OK(context, context->allocate_output(0, {layout_.num_shards(), words}, &output));
    int32_t* messages = output->flat<int32_t>().data();

    const auto encode = GetOneBitColumns().encode<Value>();
    FirstFailure not_finite;
    std::vector<double> sums(CeilDiv(layout_.num_columns(), kColumnsPerBlock));
    for (int64_t shard = 0; shard < layout_.num_shards(); ++shard) {
      ZeroPadding(layout_, shard, messages + shard * words);
    }
    ForBlocks(context, layout_, 0, layout_.num_columns(),
              [&](int64_t first, int64_t end, int64_t block) {
                for (int64_t index = first; index < end; ++index) {
                  const Column column = layout_.column(index);
                  const int64_t shard = layout_.shard_of(index);
                  const MessageMap map(layout_, shard);
                  int32_t* message = messages + shard * words;
                  const double sum = encode(
                      Values(gradients[column.tensor]) + column.offset, residual.at(column.value),
                      column.count, rule_, FloatsOf(message + map.levels(index)),
                      CodesOf(message + map.codes(column)));
                  if (std::isnan(sum)) {
                    not_finite.Report(column.tensor);
                  } else {
                    sums[block] += sum;
                  }
                }
              });
    CopyPlain(gradients, messages, &not_finite);
    for (int64_t shard = 0; shard < layout_.num_shards(); ++shard) {
      messages[shard * words] = not_finite.flag();
    }
    OP_REQUIRES_OK(context, OutputSumOfSquares(context, sums));
  }

 private:
  static const Value* Values(const Tensor& tensor) {
    return reinterpret_cast<const Value*>(tensor.flat<T>().data());
  }

  void CopyPlain(const OpInputList& gradients, int32_t* messages, FirstFailure* not_finite) {
    const int64_t words = layout_.worker_message_words();
    float* const first = FloatsOf(messages + layout_.plain_at());
    float* out = first;
    for (int tensor : layout_.plain_tensors()) {
      const T* values = gradients[tensor].flat<T>().data();
      for (int64_t i = 0; i < layout_.tensor_size(tensor); ++i) {
        const float value = static_cast<float>(values[i]);
        if (!std::isfinite(value)) not_finite->Report(tensor);
        *out++ = value;
      }
    }
    for (int64_t shard = 1; shard < layout_.num_shards(); ++shard) {
      std::copy(first, first + layout_.plain_size(), first + shard * words);
    }
  }
};

class OneBitDecodeSumOp : public OpKernel {
 public:
  explicit OneBitDecodeSumOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, GetLayout(*context, &layout_));
    OP_REQUIRES_OK(context, GetRank(*context, layout_, &rank_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    const int64_t words = layout_.worker_message_words();
    OP_REQUIRES_OK(context, CheckMessages(input, layout_.num_shards(), words));
    const int32_t* messages = input.flat<int32_t>().data();
    Tensor* output;
    const int64_t size = layout_.shard_size(rank_);
    OP_REQUIRES_OK(context, context->allocate_output(0, {size}, &output));
    OP_REQUIRES_OK(context, OutputPlain(context, 1, layout_, messages));

    float* aggregate = output->flat<float>().data();
    const bool stream = size * sizeof(float) > kStreamBytes;
    const int64_t first_value = layout_.ShardBegin(rank_).value;
    const MessageMap map(layout_, rank_);
    const OneBitColumns& columns = GetOneBitColumns();
    ForBlocks(context, layout_, layout_.shard_start(rank_), layout_.shard_start(rank_ + 1),
              [&](int64_t first, int64_t end, int64_t) {
                for (int64_t index = first; index < end; ++index) {
                  const Column column = layout_.column(index);
                  columns.decode_sum(messages + map.levels(index), messages + map.codes(column),
                                     words, layout_.num_shards(), column.count, stream,
                                     aggregate + column.value - first_value);
                }
              });
  }

 private:
  Layout layout_;
  int64_t rank_;
};

// The second stage: quantizes the aggregate of this worker's shard, wherever it comes from.
class EncodeShardBase : public OneBitEncodeBase {
 public:
  explicit EncodeShardBase(OpKernelConstruction* context) : OneBitEncodeBase(context) {
    if (context->status().ok()) OP_REQUIRES_OK(context, GetRank(*context, layout_, &rank_));
  }

 protected:
  // make_source() is called for each block of columns, in its thread; source(index, column) then
  // gives the column's aggregate.
  template <typename MakeSource>
  absl::Status EncodeShard(OpKernelContext* context, const MakeSource& make_source) {
    LockedVariable residual;
    if (error_feedback_) {
      TF_RETURN_IF_ERROR(residual.Open(context, 1, "residual", layout_.shard_size(rank_)));
    }
    Tensor* output;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {layout_.shard_message_words()}, &output));
    int32_t* message = output->flat<int32_t>().data();

    const auto encode = GetOneBitColumns().encode<float>();
    const int64_t first_value = layout_.ShardBegin(rank_).value;
    const MessageMap map(layout_, rank_);
    FirstFailure not_finite;
    std::vector<double> sums(CeilDiv(layout_.shard_columns(rank_), kColumnsPerBlock));
    ZeroPadding(layout_, rank_, message);
    ForBlocks(context, layout_, layout_.shard_start(rank_), layout_.shard_start(rank_ + 1),
              [&](int64_t first, int64_t end, int64_t block) {
                auto source = make_source();
                for (int64_t index = first; index < end; ++index) {
                  const Column column = layout_.column(index);
                  const double sum =
                      encode(source(index, column), residual.at(column.value - first_value),
                             column.count, rule_, FloatsOf(message + map.levels(index)),
                             CodesOf(message + map.codes(column)));
                  if (std::isnan(sum)) {
                    not_finite.Report(column.tensor);
                  } else {
                    sums[block] += sum;
                  }
                }
              });
    message[0] = not_finite.flag();
    return OutputSumOfSquares(context, sums);
  }

  int64_t rank_;
};

class OneBitEncodeShardOp : public EncodeShardBase {
 public:
  using EncodeShardBase::EncodeShardBase;

  void Compute(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    OP_REQUIRES_OK(context,
                   CheckSize("aggregate", input.NumElements(), layout_.shard_size(rank_)));
    const float* aggregate = input.flat<float>().data() - layout_.ShardBegin(rank_).value;
    OP_REQUIRES_OK(context, EncodeShard(context, [aggregate] {
                     return [aggregate](int64_t, const Column& column) {
                       return aggregate + column.value;
                     };
                   }));
  }
};

class OneBitAggregateOp : public EncodeShardBase {
 public:
  using EncodeShardBase::EncodeShardBase;

  void Compute(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    const int64_t words = layout_.worker_message_words();
    OP_REQUIRES_OK(context, CheckMessages(input, layout_.num_shards(), words));
    const int32_t* messages = input.flat<int32_t>().data();
    const MessageMap map(layout_, rank_);
    const OneBitColumns& columns = GetOneBitColumns();
    OP_REQUIRES_OK(
        context, EncodeShard(context, [&] {
          return [&, sum = std::vector<float>()](int64_t index, const Column& column) mutable {
            sum.resize(std::max<size_t>(sum.size(), column.count));
            columns.decode_sum(messages + map.levels(index), messages + map.codes(column), words,
                               layout_.num_shards(), column.count, /*stream=*/false, sum.data());
            return sum.data();
          };
        }));
    OP_REQUIRES_OK(context, OutputPlain(context, 2, layout_, messages));
  }
};

template <typename T>
class OneBitDecodeOp : public OpKernel {
 public:
  using Value = typename Storage<T>::Type;

  explicit OneBitDecodeOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, GetLayout(*context, &layout_));
    OP_REQUIRES_OK(context, context->GetAttr("scale", &scale_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    const Tensor& plain = context->input(1);
    const int64_t words = layout_.shard_message_words();
    OP_REQUIRES_OK(context, CheckMessages(input, layout_.num_shards(), words));
    OP_REQUIRES_OK(context, CheckSize("plain", plain.NumElements(), layout_.plain_size()));
    const int32_t* messages = input.flat<int32_t>().data();
    const int num_tensors = context->num_outputs();
    OP_REQUIRES_OK(context, CheckSize("gradients", num_tensors, layout_.num_tensors()));
    std::vector<T*> gradients(num_tensors);
    for (int t = 0; t < num_tensors; ++t) {
      const int input = context->num_inputs() - num_tensors + t;
      const TensorShape shape = context->input(input).shape();
      OP_REQUIRES_OK(context, CheckSize("gradient", shape.num_elements(), layout_.tensor_size(t)));
      Tensor* gradient;
      OP_REQUIRES_OK(context,
                     context->forward_input_or_allocate_output({input}, t, shape, &gradient));
      gradients[t] = gradient->flat<T>().data();
    }

    const OneBitColumns& columns = GetOneBitColumns();
    const auto decode = columns.decode<Value>();
    ForBlocks(context, layout_, 0, layout_.num_columns(),
              [&](int64_t first, int64_t end, int64_t) {
                for (int64_t index = first; index < end; ++index) {
                  const Column column = layout_.column(index);
                  const int64_t shard = layout_.shard_of(index);
                  const MessageMap map(layout_, shard);
                  const int32_t* message = messages + shard * words;
                  const bool stream = layout_.size() * sizeof(Value) > kStreamBytes;
                  decode(FloatsOf(message + map.levels(index)),
                         CodesOf(message + map.codes(column)), column.count, scale_, stream,
                         reinterpret_cast<Value*>(gradients[column.tensor]) + column.offset);
                }
              });

    const float* values = plain.flat<float>().data();
    for (int tensor : layout_.plain_tensors()) {
      for (int64_t i = 0; i < layout_.tensor_size(tensor); ++i) {
        gradients[tensor][i] = static_cast<T>(*values++ * scale_);
      }
    }
  }

 private:
  Layout layout_;
  float scale_;
};

#define REGISTER_FOR(T)                                                              \
  REGISTER_KERNEL_BUILDER(                                                           \
      Name("TfOnebit>OneBitEncode").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"), \
      OneBitEncodeOp<T>);                                                            \
  REGISTER_KERNEL_BUILDER(                                                           \
      Name("TfOnebit>OneBitDecode").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"), \
      OneBitDecodeOp<T>)
REGISTER_FOR(float);
REGISTER_FOR(Eigen::half);
REGISTER_FOR(Eigen::bfloat16);
#undef REGISTER_FOR

REGISTER_KERNEL_BUILDER(Name("TfOnebit>OneBitDecodeSum").Device(tensorflow::DEVICE_CPU),
                        OneBitDecodeSumOp);
REGISTER_KERNEL_BUILDER(Name("TfOnebit>OneBitEncodeShard").Device(tensorflow::DEVICE_CPU),
                        OneBitEncodeShardOp);
REGISTER_KERNEL_BUILDER(Name("TfOnebit>OneBitAggregate").Device(tensorflow::DEVICE_CPU),
                        OneBitAggregateOp);

}  // namespace
}  // namespace tf_onebit
