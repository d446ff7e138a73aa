// The threshold ops on a GPU: what threshold_kernels.cc has launched on a stream. See one_bit_gpu.h
// for what holds for all of them.

#ifndef TF_ONEBIT_KERNELS_THRESHOLD_GPU_H_
#define TF_ONEBIT_KERNELS_THRESHOLD_GPU_H_

#include <cstdint>
#include <vector>

#include "lib/float_type.h"
#include "lib/parts.h"
#include "lib/threshold.h"

namespace tf_onebit {
namespace gpu {

// Parts, and where a device has a copy of their table.
struct DeviceParts {
  const Parts& parts;
  const int64_t* table;
};

int64_t ThresholdScratchBytes(const Parts& parts);

// Writes the message of each part, with room for `capacity` values. `threshold` and `step` are on
// the device: nothing checks them.
const char* ThresholdEncode(const DeviceParts& parts, FloatType type,
                            const std::vector<const void*>& gradients, float* residual,
                            const float* threshold, const float* step, int64_t capacity,
                            int32_t* message, void* scratch, void* stream);

// Of messages that are corrupt nothing beyond their words is read, and nothing beyond the gradients
// or variables written. What is, may be anything.
const char* ThresholdDecodeSum(const DeviceParts& parts, FloatType type,
                               const ThresholdRows& messages, float scale,
                               const std::vector<void*>& gradients, void* stream);

const char* ThresholdApply(const DeviceParts& parts, const ThresholdRows& messages,
                           const std::vector<void*>& variables, void* stream);

}  // namespace gpu
}  // namespace tf_onebit

#endif  // TF_ONEBIT_KERNELS_THRESHOLD_GPU_H_
