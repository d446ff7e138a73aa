// The inputs and outputs of the ops of blockwise model-update filtering. Their computation is in
// block_momentum_cpu.h and block_momentum_gpu.h.

#include <type_traits>
#include <vector>

#include "absl/strings/str_join.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

#include "kernels/block_momentum_cpu.h"
#include "kernels/op_common.h"
#include "kernels/op_variables.h"
#ifdef TF_ONEBIT_GPU
#include "kernels/block_momentum_gpu.h"
#endif

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
namespace errors = tensorflow::errors;

#ifdef TF_ONEBIT_GPU

// The counterpart of BlockMomentumOnCpu.
template <typename T>
class BlockMomentumOnGpu {
 public:
  using State = StateOf<T>;

  static absl::Status Difference(OpKernelContext* context, const std::vector<const T*>& variables,
                                 const std::vector<const State*>& globals,
                                 const std::vector<const State*>& deltas,
                                 const std::vector<int64_t>& sizes, State scale, State look_ahead,
                                 const std::vector<T*>& differences) {
    return StatusOf(gpu::BlockDifference<T>(variables, globals, deltas, sizes, scale, look_ahead,
                                            differences, StreamOf(context)));
  }

  static absl::Status Update(OpKernelContext* context, const BlockUpdateRule<State>& rule,
                             const std::vector<const T*>& means, const std::vector<int64_t>& sizes,
                             const std::vector<T*>& variables, const std::vector<State*>& globals,
                             const std::vector<State*>& deltas) {
    return StatusOf(gpu::BlockUpdate<T>(rule, means, sizes, variables, globals, deltas,
                                        StreamOf(context)));
  }

  static absl::Status LateUpdate(OpKernelContext* context, const LateUpdateRule<State>& rule,
                                 const std::vector<const T*>& sums,
                                 const std::vector<const T*>& changes,
                                 const std::vector<int64_t>& sizes,
                                 const std::vector<T*>& variables,
                                 const std::vector<State*>& globals,
                                 const std::vector<State*>& deltas) {
    return StatusOf(gpu::LateBlockUpdate<T>(rule, sums, changes, sizes, variables, globals, deltas,
                                            StreamOf(context)));
  }

  static absl::Status Moments(OpKernelContext* context, const MomentsUpdateRule<State>& rule,
                              const std::vector<const T*>& means,
                              const std::vector<int64_t>& sizes, const std::vector<T*>& variables,
                              const std::vector<State*>& begins) {
    return StatusOf(
        gpu::MomentsUpdate<T>(rule, means, sizes, variables, begins, StreamOf(context)));
  }
};

#endif  // TF_ONEBIT_GPU

// Reads the last input, numbers called `names`. They are converted to `State`, and must be finite
// in it.
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

absl::Status LookUp(OpKernelContext* context, const std::vector<VariableList*>& lists) {
  for (VariableList* list : lists) TF_RETURN_IF_ERROR(list->Lookup(context));
  return absl::OkStatus();
}

// Returns the memory of a list of variables, as pointers to Value.
template <typename Value>
std::vector<Value*> ValuesOf(const VariableList& variables) {
  std::vector<Value*> values;
  for (int i = 0; i < variables.size(); ++i) {
    values.push_back(variables.values<std::remove_const_t<Value>>(i));
  }
  return values;
}

template <template <typename> class Device, typename T>
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
    VariableList variables("variables"), globals("globals"), deltas("deltas");
    OP_REQUIRES_OK(context, LookUp(context, {&variables, &globals, &deltas}));
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
    std::vector<Value*> differences;
    for (int i = 0; i < count; ++i) {
      Tensor* difference;
      OP_REQUIRES_OK(context, context->allocate_output(i, shapes_[i], &difference));
      differences.push_back(static_cast<Value*>(difference->data()));
    }
    OP_REQUIRES_OK(context, Device<Value>::Difference(
                                context, ValuesOf<const Value>(variables),
                                ValuesOf<const State>(globals), ValuesOf<const State>(deltas),
                                sizes_, coefficients[0], coefficients[1], differences));
  }

 private:
  std::vector<TensorShape> shapes_;
  std::vector<int64_t> sizes_;
};

// The means of the updated tensors, and their sizes.
template <typename Value>
struct Means {
  std::vector<const Value*> values;
  std::vector<int64_t> sizes;
};

// Checks that variables have the shapes and types of means, and states the same shapes. Takes their
// memory. Nothing is changed if a check fails.
template <typename T, typename Value>
absl::Status OpenToUpdate(OpKernelContext* context, const VariableList& variables,
                          const std::vector<const VariableList*>& states, Lock* lock,
                          Means<Value>* means) {
  OpInputList tensors;
  TF_RETURN_IF_ERROR(context->input_list("means", &tensors));
  std::vector<const VariableList*> all = {&variables};
  all.insert(all.end(), states.begin(), states.end());
  TF_RETURN_IF_ERROR(lock->Open(all, Lock::kToUpdate));
  constexpr DataType kStateType = DataTypeToEnum<StateOf<Value>>::value;
  for (int i = 0; i < tensors.size(); ++i) {
    for (const VariableList* list : all) {
      const DataType dtype = list == &variables ? DataTypeToEnum<T>::value : kStateType;
      TF_RETURN_IF_ERROR(list->Check(i, dtype, tensors[i].shape(), "means"));
    }
    means->values.push_back(static_cast<const Value*>(tensors[i].data()));
    means->sizes.push_back(tensors[i].NumElements());
  }
  for (int i = 0; i < tensors.size(); ++i) {
    for (const VariableList* list : all) TF_RETURN_IF_ERROR(list->Own(context, i));
  }
  return absl::OkStatus();
}

template <template <typename> class Device, typename T>
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
    VariableList variables("variables"), globals("globals"), deltas("deltas");
    OP_REQUIRES_OK(context, LookUp(context, {&variables, &globals, &deltas}));
    Lock lock;
    Means<Value> means;
    OP_REQUIRES_OK(context,
                   OpenToUpdate<T>(context, variables, {&globals, &deltas}, &lock, &means));
    OP_REQUIRES_OK(context, Device<Value>::Update(context, rule, means.values, means.sizes,
                                                  ValuesOf<Value>(variables),
                                                  ValuesOf<State>(globals),
                                                  ValuesOf<State>(deltas)));
  }

 private:
  bool nesterov_, relative_;
};

template <template <typename> class Device, typename T>
class LateBlockUpdateOp : public OpKernel {
 public:
  using Value = typename Storage<T>::Type;
  using State = StateOf<Value>;

  explicit LateBlockUpdateOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("nesterov", &nesterov_));
  }

  void Compute(OpKernelContext* context) override {
    State coefficients[5];
    OP_REQUIRES_OK(context,
                   GetCoefficients(context,
                                   "block_momentum, block_learning_rate, look_ahead, correction, "
                                   "inverse_scale",
                                   coefficients));
    const LateUpdateRule<State> rule = {
        {coefficients[0], coefficients[1], coefficients[2], nesterov_, /*relative=*/true},
        coefficients[3],
        coefficients[4]};
    VariableList variables("variables"), globals("globals"), deltas("deltas");
    OP_REQUIRES_OK(context, LookUp(context, {&variables, &globals, &deltas}));
    Lock lock;
    Means<Value> sums;
    OP_REQUIRES_OK(context,
                   OpenToUpdate<T>(context, variables, {&globals, &deltas}, &lock, &sums));
    OpInputList tensors;
    OP_REQUIRES_OK(context, context->input_list("changes", &tensors));
    std::vector<const Value*> changes;
    for (int i = 0; i < tensors.size(); ++i) {
      OP_REQUIRES(context, tensors[i].NumElements() == sums.sizes[i],
                  errors::InvalidArgument("changes[", i, "] must have the shape of means[", i,
                                          "]. Received: shape=",
                                          tensors[i].shape().DebugString(), "."));
      changes.push_back(static_cast<const Value*>(tensors[i].data()));
    }
    OP_REQUIRES_OK(context, Device<Value>::LateUpdate(context, rule, sums.values, changes,
                                                      sums.sizes, ValuesOf<Value>(variables),
                                                      ValuesOf<State>(globals),
                                                      ValuesOf<State>(deltas)));
  }

 private:
  bool nesterov_;
};

template <template <typename> class Device, typename T>
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
    VariableList variables("variables"), begins("begins");
    OP_REQUIRES_OK(context, LookUp(context, {&variables, &begins}));
    Lock lock;
    Means<Value> means;
    OP_REQUIRES_OK(context, OpenToUpdate<T>(context, variables, {&begins}, &lock, &means));
    OP_REQUIRES_OK(context,
                   Device<Value>::Moments(context, rule, means.values, means.sizes,
                                          ValuesOf<Value>(variables), ValuesOf<State>(begins)));
  }

 private:
  bool relative_;
};

#define REGISTER_FOR(ON, NAME, T)                          \
  REGISTER_KERNEL_BUILDER(Name("TfOnebit>BlockDifference") \
                              .Device(NAME)                \
                              .HostMemory("variables")     \
                              .HostMemory("globals")       \
                              .HostMemory("deltas")        \
                              .HostMemory("coefficients")  \
                              .TypeConstraint<T>("T"),     \
                          BlockDifferenceOp<ON, T>);       \
  REGISTER_KERNEL_BUILDER(Name("TfOnebit>BlockUpdate")     \
                              .Device(NAME)                \
                              .HostMemory("variables")     \
                              .HostMemory("globals")       \
                              .HostMemory("deltas")        \
                              .HostMemory("coefficients")  \
                              .TypeConstraint<T>("T"),     \
                          BlockUpdateOp<ON, T>);           \
  REGISTER_KERNEL_BUILDER(Name("TfOnebit>LateBlockUpdate") \
                              .Device(NAME)                \
                              .HostMemory("variables")     \
                              .HostMemory("globals")       \
                              .HostMemory("deltas")        \
                              .HostMemory("coefficients")  \
                              .TypeConstraint<T>("T"),     \
                          LateBlockUpdateOp<ON, T>);       \
  REGISTER_KERNEL_BUILDER(Name("TfOnebit>MomentsUpdate")   \
                              .Device(NAME)                \
                              .HostMemory("variables")     \
                              .HostMemory("begins")        \
                              .HostMemory("coefficients")  \
                              .TypeConstraint<T>("T"),     \
                          MomentsUpdateOp<ON, T>)
#define REGISTER(ON, NAME)             \
  REGISTER_FOR(ON, NAME, float);       \
  REGISTER_FOR(ON, NAME, double);      \
  REGISTER_FOR(ON, NAME, Eigen::half); \
  REGISTER_FOR(ON, NAME, Eigen::bfloat16)
TF_ONEBIT_REGISTER(REGISTER, BlockMomentumOnCpu, BlockMomentumOnGpu);
#undef REGISTER
#undef REGISTER_FOR

}  // namespace
}  // namespace tf_onebit
