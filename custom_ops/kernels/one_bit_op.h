// What the kernels of the one-bit ops have in common: their computation on a GPU, and checks.

#ifndef TF_ONEBIT_KERNELS_ONE_BIT_OP_H_
#define TF_ONEBIT_KERNELS_ONE_BIT_OP_H_

#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

#include "kernels/one_bit_cpu.h"
#include "kernels/op_common.h"
#include "kernels/op_layout.h"
#include "kernels/op_variables.h"
#ifdef TF_ONEBIT_GPU
#include "kernels/one_bit_gpu.h"
#endif

namespace tf_onebit {

#ifdef TF_ONEBIT_GPU

// The counterpart of OneBitOnCpu.
class OneBitOnGpu {
 public:
  absl::Status Encode(tensorflow::OpKernelContext* context, const Layout& layout, FloatType type,
                      const std::vector<const void*>& gradients, const float* value_scales,
                      const OneBitQuantizer& quantizer, int32_t* messages) {
    Scratch scratch;
    const int64_t* table;
    TF_RETURN_IF_ERROR(table_.Get(context, layout, &table));
    TF_RETURN_IF_ERROR(
        scratch.Allocate(context, gpu::OneBitScratchBytes(layout.num_columns())));
    return StatusOf(gpu::OneBitEncode({layout, table}, type, gradients, value_scales, quantizer,
                                      messages, scratch.data(), StreamOf(context)));
  }

  absl::Status DecodeSum(tensorflow::OpKernelContext* context, const Layout& layout, int64_t rank,
                         const int32_t* messages, float* aggregate, float* plain) {
    const int64_t* table;
    TF_RETURN_IF_ERROR(table_.Get(context, layout, &table));
    return StatusOf(gpu::OneBitDecodeSum({layout, table}, rank, messages, aggregate, plain,
                                         StreamOf(context)));
  }

  absl::Status EncodeShard(tensorflow::OpKernelContext* context, const Layout& layout, int64_t rank,
                           const float* aggregate, const OneBitQuantizer& quantizer,
                           int32_t* message) {
    Scratch scratch;
    const int64_t* table;
    TF_RETURN_IF_ERROR(table_.Get(context, layout, &table));
    TF_RETURN_IF_ERROR(
        scratch.Allocate(context, gpu::OneBitScratchBytes(layout.shard_columns(rank))));
    return StatusOf(gpu::OneBitEncodeShard({layout, table}, rank, aggregate, quantizer, message,
                                           scratch.data(), StreamOf(context)));
  }

  absl::Status Aggregate(tensorflow::OpKernelContext* context, const Layout& layout, int64_t rank,
                         const int32_t* messages, const OneBitQuantizer& quantizer,
                         int32_t* message, float* plain) {
    Scratch scratch;
    const int64_t* table;
    TF_RETURN_IF_ERROR(table_.Get(context, layout, &table));
    TF_RETURN_IF_ERROR(
        scratch.Allocate(context, gpu::OneBitScratchBytes(layout.shard_columns(rank))));
    return StatusOf(gpu::OneBitAggregate({layout, table}, rank, messages, quantizer, message, plain,
                                         scratch.data(), StreamOf(context)));
  }

  absl::Status Decode(tensorflow::OpKernelContext* context, const Layout& layout, FloatType type,
                      const int32_t* messages, int bits, const float* plain, float scale,
                      const float* value_scales, const std::vector<void*>& gradients) {
    const int64_t* table;
    TF_RETURN_IF_ERROR(table_.Get(context, layout, &table));
    return StatusOf(gpu::OneBitDecode({layout, table}, type, messages, bits, plain, scale,
                                      value_scales, gradients, StreamOf(context)));
  }

  absl::Status DecodeAdd(tensorflow::OpKernelContext* context, const Layout& layout,
                         const int32_t* messages, int bits, const float* plain, float scale,
                         const float* value_scales, const float* factor,
                         const std::vector<void*>& variables) {
    const int64_t* table;
    TF_RETURN_IF_ERROR(table_.Get(context, layout, &table));
    return StatusOf(gpu::OneBitDecodeAdd({layout, table}, messages, bits, plain, scale,
                                         value_scales, factor, variables, StreamOf(context)));
  }

  absl::Status LearnScales(tensorflow::OpKernelContext* context, const Layout& layout,
                           FloatType type, const std::vector<const void*>& updates,
                           float* squares) {
    return StatusOf(gpu::OneBitLearnScales(layout, type, updates, squares, StreamOf(context)));
  }

 private:
  DeviceTable table_;
};

#endif  // TF_ONEBIT_GPU

inline absl::Status CheckMessages(const tensorflow::Tensor& messages, int64_t shards,
                                  int64_t words) {
  if (messages.shape() == tensorflow::TensorShape({shards, words})) return absl::OkStatus();
  return tensorflow::errors::InvalidArgument(
      "messages must have shape [", shards, ", ", words, "], as the layout says. Received: shape=",
      messages.shape().DebugString(), ". Do all workers use the same layout?");
}

inline absl::Status GetBits(tensorflow::OpKernelConstruction* context, int* bits) {
  TF_RETURN_IF_ERROR(context->GetAttr("bits", bits));
  if (*bits >= 1 && *bits <= kMaxBits) return absl::OkStatus();
  return tensorflow::errors::InvalidArgument("bits must be 1 or 2. Received: bits=", *bits);
}

// Reads the scales of the values of all columns. An empty tensor stands for none: nullptr.
inline absl::Status GetValueScales(const tensorflow::Tensor& tensor, const Layout& layout,
                                   const float** scales) {
  *scales = nullptr;
  if (tensor.NumElements() == 0) return absl::OkStatus();
  *scales = static_cast<const float*>(tensor.data());
  return CheckSize("value_scales", tensor.NumElements(), layout.size());
}

// Reads a list of tensors with the sizes of the layout.
inline absl::Status GetTensors(tensorflow::OpKernelContext* context, const char* input,
                               const char* what, const Layout& layout,
                               std::vector<const void*>* tensors) {
  tensorflow::OpInputList list;
  TF_RETURN_IF_ERROR(context->input_list(input, &list));
  TF_RETURN_IF_ERROR(CheckSize(input, list.size(), layout.num_tensors()));
  for (int t = 0; t < list.size(); ++t) {
    TF_RETURN_IF_ERROR(CheckSize(what, list[t].NumElements(), layout.tensor_size(t)));
  }
  *tensors = PointersOf(list);
  return absl::OkStatus();
}

inline absl::Status OutputFloats(tensorflow::OpKernelContext* context, int output,
                                 const tensorflow::TensorShape& shape, float** values) {
  tensorflow::Tensor* tensor;
  TF_RETURN_IF_ERROR(context->allocate_output(output, shape, &tensor));
  *values = static_cast<float*>(tensor->data());
  return absl::OkStatus();
}

}  // namespace tf_onebit

#endif  // TF_ONEBIT_KERNELS_ONE_BIT_OP_H_
