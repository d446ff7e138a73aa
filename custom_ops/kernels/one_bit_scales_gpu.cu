// The averages of squares from which the scales of values are made, on a GPU.

#include "kernels/one_bit_gpu.h"

#include <vector>

#include "kernels/gpu_tensors.h"

namespace tf_onebit {
namespace gpu {
namespace {

template <typename T>
struct Learn {
  __device__ void operator()(void* const (&arrays)[2], int64_t, int64_t i, int64_t left,
                             bool aligned) const {
    T update[4];
    float square[4];
    float* const squares = static_cast<float*>(arrays[1]) + i;
    Load4(static_cast<const T*>(arrays[0]) + i, left, aligned, update);
    Load4<float>(squares, left, aligned, square);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float learned =
          LearnedSquare(square[j], ToFloat(update[j]), kKeptOfSquare, kLearnedOfSquare);
      square[j] = IsFinite(learned) ? learned : square[j];
    }
    Store4(square, left, aligned, squares);
  }
};

}  // namespace

const char* OneBitLearnScales(const Layout& layout, FloatType type,
                              const std::vector<const void*>& updates, float* squares,
                              void* stream) {
  std::vector<Arrays<2>> arrays;
  const LayoutView view = layout.view();
  for (int64_t c = 0; c < view.num_cuts; ++c) {
    const Cut& cut = view.cuts[c];
    arrays.push_back(
        {{const_cast<void*>(updates[cut.tensor]), squares + cut.first_value}, cut.size, 0});
  }
  return WithType(type, [&](auto zero) {
    return LaunchForFour(arrays, Learn<decltype(zero)>{}, stream);
  });
}

}  // namespace gpu
}  // namespace tf_onebit
