// The threshold ops on a GPU: threshold_kernels.cc launches them on a stream. one_bit_gpu.h states
// common rules.

#ifndef TF_ONEBIT_KERNELS_THRESHOLD_GPU_H_
#define TF_ONEBIT_KERNELS_THRESHOLD_GPU_H_

#include <cstdint>
#include <vector>

#include "lib/float_type.h"
#include "lib/parts.h"
#include "lib/threshold.h"

namespace tf_onebit {
namespace gpu {

// Parts, and the device's copy of their table.
struct DeviceParts {
  const Parts& parts;
  const int64_t* table;
};

int64_t ThresholdScratchBytes(const Parts& parts);

// Writes the message of each part, with room for `capacity` values. `threshold`, `magnitude` and
// `step` are on the device, and are not checked.
const char* ThresholdEncode(const DeviceParts& parts, FloatType type,
                            const std::vector<const void*>& gradients, float* residual,
                            const float* threshold, const float* magnitude, const float* step,
                            float decay, int64_t capacity, int32_t* message, void* scratch, void* stream);

// Corrupt messages are never read beyond their words, and never cause writes beyond the gradients
// or variables. The written values may then be anything.
const char* ThresholdDecodeSum(const DeviceParts& parts, FloatType type,
                               const ThresholdRows& messages, float scale,
                               const std::vector<void*>& gradients, void* stream);

// Adds `factor` times the decoded sums to variables. `factor` is on the device.
const char* ThresholdDecodeAdd(const DeviceParts& parts, const ThresholdRows& messages, float scale,
                               const float* factor, const std::vector<void*>& variables,
                               void* stream);

const char* UpdateVariables(const DeviceParts& parts, const ThresholdRows& messages,
                            ThresholdUpdate update, const std::vector<void*>& variables,
                            void* stream);

}  // namespace gpu
}  // namespace tf_onebit

#endif  // TF_ONEBIT_KERNELS_THRESHOLD_GPU_H_
