// The one-bit ops on a GPU: one_bit_op.h launches them on a stream.
//
// Every pointer to data is a pointer to device memory. No function waits for the device. The same
// input gives the same bits as on the CPU, because sums are in the order of lib/lanes.h. Functions
// return nullptr, or CUDA's error message.

#ifndef TF_ONEBIT_KERNELS_ONE_BIT_GPU_H_
#define TF_ONEBIT_KERNELS_ONE_BIT_GPU_H_

#include <cstdint>
#include <vector>

#include "lib/float_type.h"
#include "lib/layout.h"
#include "lib/one_bit.h"

namespace tf_onebit {
namespace gpu {

// A layout, and the device's copy of its table.
struct DeviceLayout {
  const Layout& layout;
  const int64_t* table;
};

// Returns the size of the scratch memory that encoding takes.
int64_t OneBitScratchBytes(int64_t num_columns);

// `gradients` is a list in host memory, one pointer for each tensor. `value_scales` may be nullptr.
const char* OneBitEncode(const DeviceLayout& layout, FloatType type,
                         const std::vector<const void*>& gradients, const float* value_scales,
                         const OneBitQuantizer& quantizer, int32_t* messages, void* scratch,
                         void* stream);

const char* OneBitDecodeSum(const DeviceLayout& layout, int64_t rank, const int32_t* messages,
                            float* aggregate, float* plain, void* stream);

const char* OneBitEncodeShard(const DeviceLayout& layout, int64_t rank, const float* aggregate,
                              const OneBitQuantizer& quantizer, int32_t* message, void* scratch,
                              void* stream);

const char* OneBitAggregate(const DeviceLayout& layout, int64_t rank, const int32_t* messages,
                            const OneBitQuantizer& quantizer, int32_t* message, float* plain,
                            void* scratch, void* stream);

const char* OneBitDecode(const DeviceLayout& layout, FloatType type, const int32_t* messages,
                         int bits, const float* plain, float scale, const float* value_scales,
                         const std::vector<void*>& gradients, void* stream);

// Adds `factor` times the decoded values to float32 variables. `factor` is on the device.
const char* OneBitDecodeAdd(const DeviceLayout& layout, const int32_t* messages, int bits,
                            const float* plain, float scale, const float* value_scales,
                            const float* factor, const std::vector<void*>& variables,
                            void* stream);

const char* OneBitLearnScales(const Layout& layout, FloatType type,
                              const std::vector<const void*>& updates, float* squares,
                              void* stream);

}  // namespace gpu
}  // namespace tf_onebit

#endif  // TF_ONEBIT_KERNELS_ONE_BIT_GPU_H_
