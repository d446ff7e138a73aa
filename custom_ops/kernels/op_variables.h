// Lists of variables that an op updates together. For files that include TensorFlow.

#ifndef TF_ONEBIT_KERNELS_OP_VARIABLES_H_
#define TF_ONEBIT_KERNELS_OP_VARIABLES_H_

#include <algorithm>
#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor.h"

#include "kernels/op_common.h"
#include "kernels/op_device.h"

namespace tf_onebit {

// An input list of variables. All members except Lookup need the lock.
class VariableList {
 public:
  explicit VariableList(const char* name) : name_(name) {}

  absl::Status Lookup(tensorflow::OpKernelContext* context) {
    tensorflow::OpInputList handles;
    TF_RETURN_IF_ERROR(context->input_list(name_, &handles));
    variables_.resize(handles.size());
    for (int i = 0; i < handles.size(); ++i) {
      const auto& handle = handles[i].scalar<tensorflow::ResourceHandle>()();
      const absl::Status found = LookupResource(context, handle, &variables_[i]);
      if (!found.ok()) {
        return tensorflow::errors::InvalidArgument(name_, "[", i, "] must be an initialized variable on the ",
                                       context->device()->attributes().device_type(),
                                       ". Received: ", found.message());
      }
    }
    return absl::OkStatus();
  }

  int size() const { return variables_.size(); }
  const char* name() const { return name_; }
  tensorflow::Var* operator[](int i) const { return variables_[i].get(); }

  // `origin` names the source of the expected shape.
  absl::Status Check(int i, tensorflow::DataType dtype, const tensorflow::TensorShape& shape, const char* origin) const {
    if (!variables_[i]->is_initialized) {
      return tensorflow::errors::InvalidArgument(name_, "[", i, "] must be an initialized variable. Received: ",
                                     "a variable without a value. Assign one first.");
    }
    const tensorflow::Tensor& tensor = *variables_[i]->tensor();
    if (tensor.dtype() != dtype) {
      return tensorflow::errors::InvalidArgument(name_, "[", i, "] must be a ", tensorflow::DataTypeString(dtype),
                                     " variable. Received: dtype=", tensorflow::DataTypeString(tensor.dtype()),
                                     ".");
    }
    if (tensor.shape() != shape) {
      return tensorflow::errors::InvalidArgument(name_, "[", i, "] must have shape ", shape.DebugString(),
                                     ", as ", origin, "[", i, "] has. Received: shape=",
                                     tensor.shape().DebugString(), ".");
    }
    return absl::OkStatus();
  }

  // Makes the memory of variable i its own: no other tensor shares it afterwards.
  absl::Status Own(tensorflow::OpKernelContext* context, int i) const {
    return OwnTensor(context, variables_[i]->tensor());
  }

  template <typename Value>
  Value* values(int i) const {
    return static_cast<Value*>(variables_[i]->tensor()->data());
  }

 private:
  const char* name_;
  std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>> variables_;
};

// Locks the variables of all lists, in the same order as TensorFlow's own ops.
class Lock {
 public:
  enum Access { kToRead, kToUpdate };

  absl::Status Open(const std::vector<const VariableList*>& lists, Access access) {
    std::set<const tensorflow::Var*> distinct;
    std::vector<tensorflow::mutex*> mutexes;
    for (const VariableList* list : lists) {
      for (int i = 0; i < list->size(); ++i) {
        // To lock it twice would be a deadlock.
        if (!distinct.insert((*list)[i]).second) {
          return tensorflow::errors::InvalidArgument("All variables must be different ones. Received: ",
                                         list->name(), "[", i, "] a second time.");
        }
        mutexes.push_back((*list)[i]->mu());
      }
    }
    std::sort(mutexes.begin(), mutexes.end(), std::less<>());
    access_ = access;
    for (tensorflow::mutex* mutex : mutexes) {
      access == kToRead ? mutex->lock_shared() : mutex->lock();
    }
    mutexes_ = std::move(mutexes);
    return absl::OkStatus();
  }
  ~Lock() {
    for (tensorflow::mutex* mutex : mutexes_) {
      access_ == kToRead ? mutex->unlock_shared() : mutex->unlock();
    }
  }

 private:
  std::vector<tensorflow::mutex*> mutexes_;
  Access access_;
};

// The float32 variables in the input list "variables", locked while an op updates them in place.
class LockedVariables {
 public:
  // sizes(i) is the expected number of values of variable i of `count`. With `begins` it is the
  // number of its values from begins[i] on that the op may touch.
  template <typename Sizes>
  absl::Status Open(tensorflow::OpKernelContext* context, int count, const Sizes& sizes,
                    const std::vector<int64_t>& begins = {}) {
    TF_RETURN_IF_ERROR(variables_.Lookup(context));
    TF_RETURN_IF_ERROR(CheckSize(variables_.name(), variables_.size(), count));
    TF_RETURN_IF_ERROR(lock_.Open({&variables_}, Lock::kToUpdate));
    for (int i = 0; i < count; ++i) {
      tensorflow::Tensor* tensor = variables_[i]->tensor();
      const int64_t begin = begins.empty() ? 0 : begins[i];
      const int64_t least = begin + sizes(i);
      const int64_t size = begins.empty() ? least : std::max(least, tensor->NumElements());
      TF_RETURN_IF_ERROR(OwnFloats(context, "variable", size, tensor));
      values_.push_back(static_cast<float*>(tensor->data()) + begin);
    }
    return absl::OkStatus();
  }
  const std::vector<void*>& values() const { return values_; }

 private:
  VariableList variables_{"variables"};
  Lock lock_;
  std::vector<void*> values_;
};

}  // namespace tf_onebit

#endif  // TF_ONEBIT_KERNELS_OP_VARIABLES_H_
