// The types of gradients, as values at run time.

#ifndef TF_ONEBIT_LIB_FLOAT_TYPE_H_
#define TF_ONEBIT_LIB_FLOAT_TYPE_H_

#include "lib/float16.h"

namespace tf_onebit {

enum class FloatType { kFloat32, kFloat16, kBfloat16 };

// Calls work(T{}) with the type that `type` names.
template <typename Work>
auto WithType(FloatType type, const Work& work) {
  switch (type) {
    case FloatType::kFloat16:
      return work(float16{});
    case FloatType::kBfloat16:
      return work(bfloat16{});
    default:
      return work(float{});
  }
}

}  // namespace tf_onebit

#endif  // TF_ONEBIT_LIB_FLOAT_TYPE_H_
