// The device of an op: its stream, and the memory of kernels on a GPU. For files that include
// TensorFlow.

#ifndef TF_ONEBIT_KERNELS_OP_DEVICE_H_
#define TF_ONEBIT_KERNELS_OP_DEVICE_H_

#include <cstdint>
#include <cstring>
#include <vector>

#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/mutex.h"
#include "xla/stream_executor/stream.h"

#ifdef TF_ONEBIT_GPU
#include "kernels/gpu_memory.h"
#endif

// Registers kernels for each kind of device that the library is built for. REGISTER is called with
// a class that computes, and with the kind of its device. An emulated GPU is the CPU.
#if defined(TF_ONEBIT_GPU_EMULATED)
#define TF_ONEBIT_REGISTER(REGISTER, OnCpu, OnGpu) REGISTER(OnGpu, tensorflow::DEVICE_CPU)
#elif defined(TF_ONEBIT_GPU)
#define TF_ONEBIT_REGISTER(REGISTER, OnCpu, OnGpu) \
  REGISTER(OnCpu, tensorflow::DEVICE_CPU);         \
  REGISTER(OnGpu, tensorflow::DEVICE_GPU)
#else
#define TF_ONEBIT_REGISTER(REGISTER, OnCpu, OnGpu) REGISTER(OnCpu, tensorflow::DEVICE_CPU)
#endif

namespace tf_onebit {

// Returns CUDA's stream of an op, or nullptr on a CPU.
inline void* StreamOf(tensorflow::OpKernelContext* context) {
  const tensorflow::DeviceContext* const device = context->op_device_context();
  if (device == nullptr || device->stream() == nullptr) return nullptr;
  return device->stream()->platform_specific_handle().stream;
}

inline absl::Status StatusOf(const char* error) {
  if (error == nullptr) return absl::OkStatus();
  return tensorflow::errors::Internal("A kernel of tf_onebit was not launched on the GPU: ", error,
                                      ".");
}

// A copy of a tensor, in memory of its own.
inline absl::Status Copied(tensorflow::OpKernelContext* context, const tensorflow::Tensor& tensor,
                           tensorflow::Tensor* copy) {
  TF_RETURN_IF_ERROR(context->allocate_temp(tensor.dtype(), tensor.shape(), copy));
  void* const stream = StreamOf(context);
#ifdef TF_ONEBIT_GPU
  if (stream != nullptr) {
    return StatusOf(gpu::Copy(copy->data(), tensor.data(), tensor.TotalBytes(), stream));
  }
#endif
  std::memcpy(copy->data(), tensor.data(), tensor.TotalBytes());
  return absl::OkStatus();
}

// Copies a variable's tensor if others still read the old values, so that they keep them.
inline absl::Status OwnTensor(tensorflow::OpKernelContext* context, tensorflow::Tensor* tensor) {
  if (tensor->RefCountIsOne()) return absl::OkStatus();
  tensorflow::Tensor copy;
  TF_RETURN_IF_ERROR(Copied(context, *tensor, &copy));
  *tensor = copy;
  return absl::OkStatus();
}

#ifdef TF_ONEBIT_GPU

// Device memory for the time in which an op's kernels run.
class Scratch {
 public:
  absl::Status Allocate(tensorflow::OpKernelContext* context, int64_t bytes) {
    return context->allocate_temp(tensorflow::DT_INT8, {bytes}, &memory_);
  }
  void* data() { return memory_.data(); }

 private:
  tensorflow::Tensor memory_;
};

// The device's copy of a table that an op's attributes describe. The op's first run makes it.
class DeviceTable {
 public:
  template <typename Source>
  absl::Status Get(tensorflow::OpKernelContext* context, const Source& source,
                   const int64_t** table) {
    tensorflow::mutex_lock lock(mutex_);
    if (!is_made_) {
      on_host_ = source.table();
      const int64_t size = static_cast<int64_t>(on_host_.size());
      tensorflow::Tensor copy;
      TF_RETURN_IF_ERROR(context->allocate_temp(tensorflow::DT_INT64, {size}, &copy));
      TF_RETURN_IF_ERROR(StatusOf(gpu::Copy(copy.data(), on_host_.data(),
                                            size * sizeof(int64_t), StreamOf(context))));
      on_device_ = copy;
      is_made_ = true;
    }
    *table = static_cast<const int64_t*>(on_device_.data());
    return absl::OkStatus();
  }

 private:
  tensorflow::mutex mutex_;
  bool is_made_ = false;
  std::vector<int64_t> on_host_;  // must stay, because the copy runs later
  tensorflow::Tensor on_device_;
};

#endif  // TF_ONEBIT_GPU

}  // namespace tf_onebit

#endif  // TF_ONEBIT_KERNELS_OP_DEVICE_H_
