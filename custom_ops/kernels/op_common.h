// Common parts of op kernels. For files that include TensorFlow.

#ifndef TF_ONEBIT_KERNELS_OP_COMMON_H_
#define TF_ONEBIT_KERNELS_OP_COMMON_H_

#include <atomic>
#include <cstdint>
#include <limits>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/util/work_sharder.h"

#include "kernels/op_device.h"
#include "lib/float_type.h"

namespace tf_onebit {

// TensorFlow's element type -> the storage type of the kernels, which has the same bits.
template <typename T>
struct Storage;
template <>
struct Storage<float> {
  using Type = float;
  static constexpr FloatType kType = FloatType::kFloat32;
};
template <>
struct Storage<Eigen::half> {
  using Type = float16;
  static constexpr FloatType kType = FloatType::kFloat16;
};
template <>
struct Storage<Eigen::bfloat16> {
  using Type = bfloat16;
  static constexpr FloatType kType = FloatType::kBfloat16;
};

// An output larger than this does not stay in a cache until it is read again.
constexpr int64_t kStreamBytes = 4 << 20;

// Calls work(begin, end) for parts of [0, count), in parallel. `cycles` is the cost of one item.
template <typename Work>
void ParallelFor(tensorflow::OpKernelContext* context, int64_t count, int64_t cycles,
                 const Work& work) {
  const auto& threads = *context->device()->tensorflow_cpu_worker_threads();
  tensorflow::Shard(threads.num_threads, threads.workers, count, cycles, work);
}

// Returns the words of messages, which may travel as any type.
inline int32_t* WordsOf(tensorflow::Tensor* messages) {
  return static_cast<int32_t*>(messages->data());
}
inline const int32_t* WordsOf(const tensorflow::Tensor& messages) {
  return static_cast<const int32_t*>(messages.data());
}

// Returns the memory of a list of tensors.
template <typename List>
std::vector<const void*> PointersOf(const List& tensors) {
  std::vector<const void*> pointers;
  for (int i = 0; i < tensors.size(); ++i) pointers.push_back(tensors[i].data());
  return pointers;
}

// The lowest index that any thread has reported, as the flag word of a message. It is 0 if none
// was.
class FirstFailure {
 public:
  void Report(int tensor) {
    int first = first_.load(std::memory_order_relaxed);
    while (tensor < first && !first_.compare_exchange_weak(first, tensor)) {
    }
  }
  int32_t flag() const {
    const int first = first_.load();
    return first == kNone ? 0 : 1 + first;
  }

 private:
  static constexpr int kNone = std::numeric_limits<int>::max();
  std::atomic<int> first_{kNone};
};

inline absl::Status CheckSize(const char* what, int64_t received, int64_t expected) {
  if (received == expected) return absl::OkStatus();
  return tensorflow::errors::InvalidArgument(what, " must have ", expected,
                                 " values, as the layout says. Received: ", received, " values.");
}

inline float* FloatsOf(int32_t* words) { return reinterpret_cast<float*>(words); }
inline const float* FloatsOf(const int32_t* words) {
  return reinterpret_cast<const float*>(words);
}
inline uint32_t* CodesOf(int32_t* words) { return reinterpret_cast<uint32_t*>(words); }
inline const uint32_t* CodesOf(const int32_t* words) {
  return reinterpret_cast<const uint32_t*>(words);
}

// The types that a variable may have.
enum class Types { kFloat32, kFloat32OrBfloat16 };

// Makes the memory of a variable, which is locked, its own. `what` is its name in errors.
inline absl::Status OwnFloats(tensorflow::OpKernelContext* context, const char* what, int64_t size,
                              tensorflow::Tensor* tensor, Types types = Types::kFloat32) {
  const bool may_be_bfloat16 = types == Types::kFloat32OrBfloat16;
  if (tensor->dtype() != tensorflow::DT_FLOAT &&
      !(may_be_bfloat16 && tensor->dtype() == tensorflow::DT_BFLOAT16)) {
    return tensorflow::errors::InvalidArgument(
        what, " must be a float32 ", may_be_bfloat16 ? "or bfloat16 " : "",
        "variable. Received: dtype=", DataTypeString(tensor->dtype()), ".");
  }
  TF_RETURN_IF_ERROR(CheckSize(what, tensor->NumElements(), size));
  return OwnTensor(context, tensor);
}

// A variable that an op updates in place, locked while the op works on it.
class LockedVariable {
 public:
  // `what` is its name in errors.
  absl::Status Open(tensorflow::OpKernelContext* context, int input, const char* what,
                    int64_t size, Types types = Types::kFloat32) {
    TF_RETURN_IF_ERROR(LookupResource(context, HandleFromInput(context, input), &variable_));
    variable_->mu()->lock();
    TF_RETURN_IF_ERROR(OwnFloats(context, what, size, variable_->tensor(), types));
    values_ = variable_->tensor()->data();
    return absl::OkStatus();
  }
  ~LockedVariable() {
    if (variable_ != nullptr) variable_->mu()->unlock();
  }
  // Returns the values, or nullptr if the variable was not opened.
  void* data() const { return values_; }
  float* floats() const { return static_cast<float*>(values_); }
  FloatType type() const {
    const bool is_narrow =
        values_ != nullptr && variable_->tensor()->dtype() == tensorflow::DT_BFLOAT16;
    return is_narrow ? FloatType::kBfloat16 : FloatType::kFloat32;
  }

 private:
  tensorflow::core::RefCountPtr<tensorflow::Var> variable_;
  void* values_ = nullptr;
};

}  // namespace tf_onebit

#endif  // TF_ONEBIT_KERNELS_OP_COMMON_H_
