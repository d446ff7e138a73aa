// The ops of blockwise model-update filtering on the CPU. What happens to a value is in
// lib/block_momentum.h. Memory is what takes time here: loops that the compiler makes into vectors
// of the least instruction set keep up with it.

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

#include "kernels/op_common.h"
#include "kernels/op_parts.h"
#include "lib/block_momentum.h"

namespace tf_onebit {

template <>
struct Storage<double> {
  using Type = double;
};

namespace {

using tensorflow::DataType;
using tensorflow::DataTypeToEnum;
using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::Var;
namespace errors = tensorflow::errors;

// An input list of variables. All but Lookup is for while they are locked.
class VariableList {
 public:
  explicit VariableList(const char* name) : name_(name) {}

  absl::Status Lookup(OpKernelContext* context) {
    OpInputList handles;
    TF_RETURN_IF_ERROR(context->input_list(name_, &handles));
    variables_.resize(handles.size());
    for (int i = 0; i < handles.size(); ++i) {
      const auto& handle = handles[i].scalar<tensorflow::ResourceHandle>()();
      const absl::Status found = LookupResource(context, handle, &variables_[i]);
      if (!found.ok()) {
        return errors::InvalidArgument(name_, "[", i, "] must be an initialized variable on the ",
                                       "CPU. Received: ", found.message());
      }
    }
    return absl::OkStatus();
  }

  int size() const { return variables_.size(); }
  const char* name() const { return name_; }
  Var* operator[](int i) const { return variables_[i].get(); }

  // `origin` says where the expected shape comes from.
  absl::Status Check(int i, DataType dtype, const TensorShape& shape, const char* origin) const {
    if (!variables_[i]->is_initialized) {
      return errors::InvalidArgument(name_, "[", i, "] must be an initialized variable. Received: ",
                                     "a variable without a value. Assign one first.");
    }
    const Tensor& tensor = *variables_[i]->tensor();
    if (tensor.dtype() != dtype) {
      return errors::InvalidArgument(name_, "[", i, "] must be a ", DataTypeString(dtype),
                                     " variable. Received: dtype=", DataTypeString(tensor.dtype()),
                                     ".");
    }
    if (tensor.shape() != shape) {
      return errors::InvalidArgument(name_, "[", i, "] must have shape ", shape.DebugString(),
                                     ", as ", origin, "[", i, "] has. Received: shape=",
                                     tensor.shape().DebugString(), ".");
    }
    return absl::OkStatus();
  }

  // After this nobody else, and no other tensor, has the memory of variable i.
  absl::Status Own(OpKernelContext* context, int i) const {
    Tensor* tensor = variables_[i]->tensor();
    if (!tensor->RefCountIsOne()) {  // somebody still reads the old values: leave them theirs
      Tensor copy;
      TF_RETURN_IF_ERROR(context->allocate_temp(tensor->dtype(), tensor->shape(), &copy));
      std::memcpy(copy.data(), tensor->data(), tensor->TotalBytes());
      *tensor = copy;
    }
    return absl::OkStatus();
  }

  template <typename Value>
  Value* values(int i) const {
    return static_cast<Value*>(variables_[i]->tensor()->data());
  }

 private:
  const char* name_;
  std::vector<tensorflow::core::RefCountPtr<Var>> variables_;
};

// Locks the variables of all lists, in the order that TensorFlow's own ops lock several in.
class Lock {
 public:
  enum Access { kToRead, kToUpdate };

  absl::Status Open(const std::vector<const VariableList*>& lists, Access access) {
    std::set<const Var*> distinct;
    std::vector<tensorflow::mutex*> mutexes;
    for (const VariableList* list : lists) {
      for (int i = 0; i < list->size(); ++i) {
        // Locked twice, it would be waited for forever.
        if (!distinct.insert((*list)[i]).second) {
          return errors::InvalidArgument("All variables must be different ones. Received: ",
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

// Reads the last input, numbers called `names`. They are used as `State`, and must be finite in it.
template <typename State, size_t kCount>
absl::Status GetCoefficients(OpKernelContext* context, const char* names, State (&out)[kCount]) {
  const Tensor& tensor = context->input(context->num_inputs() - 1);
  if (tensor.shape() != TensorShape({static_cast<int64_t>(kCount)})) {
    return errors::InvalidArgument("coefficients must be ", kCount, " numbers, [", names,
                                   "]. Received: shape=", tensor.shape().DebugString(), ".");
  }
  const double* const values = tensor.flat<double>().data();
  for (size_t i = 0; i < kCount; ++i) {
    out[i] = static_cast<State>(values[i]);
    if (!IsFinite(out[i])) {
      return errors::InvalidArgument(
          "coefficients, [", names, "], must be finite as ",
          DataTypeString(DataTypeToEnum<State>::v()), ". Received: coefficients=[",
          absl::StrJoin(values, values + kCount, ", "), "].");
    }
  }
  return absl::OkStatus();
}

// Calls work(tensor, offset, count) for runs of the values of tensors, in parallel. Values do not
// depend on each other, and so not on the threads.
template <typename Work>
void ForRuns(OpKernelContext* context, const std::vector<int64_t>& sizes, const Work& work) {
  const int64_t size = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  if (size == 0) return;
  const std::vector<Stripe> runs = StripesOf(Parts(sizes, size));
  const int64_t count = runs.size();
  // A few cycles per value: bandwidth bound.
  ParallelFor(context, count, 1 + 4 * size / count, [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) work(runs[i].tensor, runs[i].offset, runs[i].count);
  });
}

// Loops over a run of values. No two of their pointers are to the same memory: VariableList::Own
// has seen to what is written. Inline, so that the compiler knows the length of a line.

template <typename T>
inline void DifferenceLoop(const T* __restrict variable, const StateOf<T>* __restrict global,
                           const StateOf<T>* __restrict delta, int64_t count, StateOf<T> scale,
                           StateOf<T> look_ahead, T* __restrict out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = DifferenceOf(variable[i], BeginOf<T>(global[i], delta[i], look_ahead), scale);
  }
}

template <typename T>
inline void DifferenceLoop(const T* __restrict variable, const StateOf<T>* __restrict global,
                           int64_t count, StateOf<T> scale, T* __restrict out) {
  constexpr StateOf<T> kNone = 0;
  for (int64_t i = 0; i < count; ++i) {
    out[i] = DifferenceOf(variable[i], BeginOf<T>(global[i], kNone, kNone), scale);
  }
}

template <typename T>
inline void UpdateLoop(const BlockUpdateRule<StateOf<T>>& rule, const T* __restrict mean,
                       int64_t count, T* __restrict variable, StateOf<T>* __restrict global,
                       StateOf<T>* __restrict delta) {
  for (int64_t i = 0; i < count; ++i) {
    variable[i] = UpdateBlock(rule, mean[i], global[i], delta[i]);
  }
}

template <typename T>
inline void MomentsLoop(const MomentsUpdateRule<StateOf<T>>& rule, const T* __restrict mean,
                        int64_t count, T* __restrict variable, StateOf<T>* __restrict begin) {
  for (int64_t i = 0; i < count; ++i) variable[i] = UpdateMoment(rule, mean[i], begin[i]);
}

// Calls loop(first, count) for all of a run, a line of float32 values at a time, and has the lines
// of `pointers` fetched well before their use: with four or five streams the processor's own
// prefetching is 1.4 times as slow.
template <typename Loop, typename... Values>
inline void ForLines(int64_t count, const Loop& loop, const Values*... pointers) {
  constexpr int64_t kLine = 16, kAhead = 32 * kLine;
  int64_t i = 0;
  for (; i + kLine <= count; i += kLine) {
    const int64_t ahead = std::min(i + kAhead, count - 1);
    (__builtin_prefetch(pointers + ahead, 1), ...);
    loop(i, kLine);
  }
  loop(i, count - i);
}

template <typename T>
class BlockDifferenceOp : public OpKernel {
 public:
  using Value = typename Storage<T>::Type;
  using State = StateOf<Value>;

  explicit BlockDifferenceOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("shapes", &shapes_));
    for (const TensorShape& shape : shapes_) sizes_.push_back(shape.num_elements());
  }

  void Compute(OpKernelContext* context) override {
    State coefficients[2];
    OP_REQUIRES_OK(context, GetCoefficients(context, "scale, look_ahead", coefficients));
    const State scale = coefficients[0], look_ahead = coefficients[1];
    VariableList variables("variables"), globals("globals"), deltas("deltas");
    OP_REQUIRES_OK(context, variables.Lookup(context));
    OP_REQUIRES_OK(context, globals.Lookup(context));
    OP_REQUIRES_OK(context, deltas.Lookup(context));
    const int count = variables.size();
    OP_REQUIRES(context, shapes_.size() == count && (deltas.size() == 0 || deltas.size() == count),
                errors::InvalidArgument(
                    "There must be one shape for each variable, and one delta or none at all. ",
                    "Received: ", count, " variables, ", shapes_.size(), " shapes, ",
                    deltas.size(), " deltas."));
    Lock lock;
    OP_REQUIRES_OK(context, lock.Open({&variables, &globals, &deltas}, Lock::kToRead));
    const DataType state_type = DataTypeToEnum<State>::v();
    for (int i = 0; i < count; ++i) {
      OP_REQUIRES_OK(context, variables.Check(i, DataTypeToEnum<T>::v(), shapes_[i],
                                              "the attribute shapes"));
      OP_REQUIRES_OK(context, globals.Check(i, state_type, shapes_[i], "variables"));
      if (deltas.size() != 0) {
        OP_REQUIRES_OK(context, deltas.Check(i, state_type, shapes_[i], "variables"));
      }
    }
    std::vector<Value*> differences(count);
    for (int i = 0; i < count; ++i) {
      Tensor* difference;
      OP_REQUIRES_OK(context, context->allocate_output(i, shapes_[i], &difference));
      differences[i] = static_cast<Value*>(difference->data());
    }
    const bool looks_ahead = deltas.size() != 0 && look_ahead != 0;
    ForRuns(context, sizes_, [&](int64_t i, int64_t offset, int64_t values) {
      const Value* const variable = variables.values<Value>(i) + offset;
      const State* const global = globals.values<State>(i) + offset;
      Value* const out = differences[i] + offset;
      if (looks_ahead) {
        const State* const delta = deltas.values<State>(i) + offset;
        ForLines(values, [&](int64_t at, int64_t n) {
          DifferenceLoop(variable + at, global + at, delta + at, n, scale, look_ahead, out + at);
        }, variable, global, delta, out);
      } else {
        ForLines(values, [&](int64_t at, int64_t n) {
          DifferenceLoop(variable + at, global + at, n, scale, out + at);
        }, variable, global, out);
      }
    });
  }

 private:
  std::vector<TensorShape> shapes_;
  std::vector<int64_t> sizes_;
};

// Checks that variables are like means, and states too but for their type; takes their memory.
// Nothing is changed if it fails.
template <typename T>
absl::Status OpenToUpdate(OpKernelContext* context, const OpInputList& means,
                          const VariableList& variables,
                          const std::vector<const VariableList*>& states, Lock* lock,
                          std::vector<int64_t>* sizes) {
  std::vector<const VariableList*> all = {&variables};
  all.insert(all.end(), states.begin(), states.end());
  TF_RETURN_IF_ERROR(lock->Open(all, Lock::kToUpdate));
  constexpr DataType kStateType = DataTypeToEnum<StateOf<typename Storage<T>::Type>>::value;
  for (int i = 0; i < means.size(); ++i) {
    for (const VariableList* list : all) {
      const DataType dtype = list == &variables ? DataTypeToEnum<T>::value : kStateType;
      TF_RETURN_IF_ERROR(list->Check(i, dtype, means[i].shape(), "means"));
    }
    sizes->push_back(means[i].NumElements());
  }
  for (int i = 0; i < means.size(); ++i) {
    for (const VariableList* list : all) TF_RETURN_IF_ERROR(list->Own(context, i));
  }
  return absl::OkStatus();
}

template <typename T>
class BlockUpdateOp : public OpKernel {
 public:
  using Value = typename Storage<T>::Type;
  using State = StateOf<Value>;

  explicit BlockUpdateOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("nesterov", &nesterov_));
    OP_REQUIRES_OK(context, context->GetAttr("relative", &relative_));
  }

  void Compute(OpKernelContext* context) override {
    State coefficients[3];
    OP_REQUIRES_OK(context,
                   GetCoefficients(context, "block_momentum, block_learning_rate, look_ahead",
                                   coefficients));
    const BlockUpdateRule<State> rule = {coefficients[0], coefficients[1], coefficients[2],
                                         nesterov_, relative_};
    OpInputList means;
    OP_REQUIRES_OK(context, context->input_list("means", &means));
    VariableList variables("variables"), globals("globals"), deltas("deltas");
    OP_REQUIRES_OK(context, variables.Lookup(context));
    OP_REQUIRES_OK(context, globals.Lookup(context));
    OP_REQUIRES_OK(context, deltas.Lookup(context));
    Lock lock;
    std::vector<int64_t> sizes;
    OP_REQUIRES_OK(context, OpenToUpdate<T>(context, means, variables, {&globals, &deltas}, &lock,
                                            &sizes));
    ForRuns(context, sizes, [&](int64_t i, int64_t offset, int64_t values) {
      const Value* const mean = static_cast<const Value*>(means[i].data()) + offset;
      Value* const variable = variables.values<Value>(i) + offset;
      State* const global = globals.values<State>(i) + offset;
      State* const delta = deltas.values<State>(i) + offset;
      ForLines(values, [&](int64_t at, int64_t n) {
        UpdateLoop(rule, mean + at, n, variable + at, global + at, delta + at);
      }, mean, variable, global, delta);
    });
  }

 private:
  bool nesterov_, relative_;
};

template <typename T>
class MomentsUpdateOp : public OpKernel {
 public:
  using Value = typename Storage<T>::Type;
  using State = StateOf<Value>;

  explicit MomentsUpdateOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("relative", &relative_));
  }

  void Compute(OpKernelContext* context) override {
    State coefficients[2];
    OP_REQUIRES_OK(context, GetCoefficients(context, "extrapolation, floor", coefficients));
    const MomentsUpdateRule<State> rule = {coefficients[0], coefficients[1], relative_};
    OpInputList means;
    OP_REQUIRES_OK(context, context->input_list("means", &means));
    VariableList variables("variables"), begins("begins");
    OP_REQUIRES_OK(context, variables.Lookup(context));
    OP_REQUIRES_OK(context, begins.Lookup(context));
    Lock lock;
    std::vector<int64_t> sizes;
    OP_REQUIRES_OK(context,
                   OpenToUpdate<T>(context, means, variables, {&begins}, &lock, &sizes));
    ForRuns(context, sizes, [&](int64_t i, int64_t offset, int64_t values) {
      const Value* const mean = static_cast<const Value*>(means[i].data()) + offset;
      Value* const variable = variables.values<Value>(i) + offset;
      State* const begin = begins.values<State>(i) + offset;
      ForLines(values, [&](int64_t at, int64_t n) {
        MomentsLoop(rule, mean + at, n, variable + at, begin + at);
      }, mean, variable, begin);
    });
  }

 private:
  bool relative_;
};

#define REGISTER_FOR(T)                                                                       \
  REGISTER_KERNEL_BUILDER(                                                                    \
      Name("TfOnebit>BlockDifference").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"), \
      BlockDifferenceOp<T>);                                                                  \
  REGISTER_KERNEL_BUILDER(                                                                    \
      Name("TfOnebit>BlockUpdate").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"),     \
      BlockUpdateOp<T>);                                                                      \
  REGISTER_KERNEL_BUILDER(                                                                    \
      Name("TfOnebit>MomentsUpdate").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"),   \
      MomentsUpdateOp<T>)
REGISTER_FOR(float);
REGISTER_FOR(double);
REGISTER_FOR(Eigen::half);
REGISTER_FOR(Eigen::bfloat16);
#undef REGISTER_FOR

}  // namespace
}  // namespace tf_onebit
