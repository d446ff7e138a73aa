// The two 16-bit float formats: storage types and scalar conversions, without dependencies.

#ifndef TF_ONEBIT_LIB_FLOAT16_H_
#define TF_ONEBIT_LIB_FLOAT16_H_

#include <cstdint>
#include <cstring>

#include "lib/host_device.h"

namespace tf_onebit {

struct float16 {  // IEEE 754 binary16: 1 sign, 5 exponent, 10 fraction bits
  uint16_t bits;
};

struct bfloat16 {  // the upper half of a float: 1 sign, 8 exponent, 7 fraction bits
  uint16_t bits;
};

TF_ONEBIT_HOST_DEVICE uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

TF_ONEBIT_HOST_DEVICE float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

TF_ONEBIT_HOST_DEVICE float ToFloat(float value) { return value; }

TF_ONEBIT_HOST_DEVICE float ToFloat(bfloat16 value) { return FloatOf(uint32_t{value.bits} << 16); }

TF_ONEBIT_HOST_DEVICE float ToFloat(float16 value) {
  const uint32_t sign = (value.bits & 0x8000u) << 16;
  const uint32_t magnitude = value.bits & 0x7FFFu;
  if (magnitude < 0x0400u) {  // zero or subnormal: units of 2^-24
    return FloatOf(sign | BitsOf(static_cast<float>(magnitude) * 0x1p-24f));
  }
  const uint32_t bias = magnitude < 0x7C00u ? 127 - 15 : 255 - 31;
  // Bit 22 makes a signalling NaN quiet, as the processor's own conversion does.
  const uint32_t quiet = magnitude > 0x7C00u ? 0x00400000u : 0;
  return FloatOf(sign | ((magnitude << 13) + (bias << 23)) | quiet);
}

// Rounds to nearest even. A NaN stays a NaN. Values that are too large become infinite.
template <typename T>
TF_ONEBIT_HOST_DEVICE T FromFloat(float value);

template <>
TF_ONEBIT_HOST_DEVICE_MEMBER inline float FromFloat<float>(float value) {
  return value;
}

template <>
TF_ONEBIT_HOST_DEVICE_MEMBER inline bfloat16 FromFloat<bfloat16>(float value) {
  const uint32_t bits = BitsOf(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
    return {static_cast<uint16_t>(bits >> 16 | 0x0040u)};
  }
  return {static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16)};
}

template <>
TF_ONEBIT_HOST_DEVICE_MEMBER inline float16 FromFloat<float16>(float value) {
  const uint32_t sign = BitsOf(value) >> 16 & 0x8000u;
  const uint32_t magnitude = BitsOf(value) & 0x7FFFFFFFu;
  uint32_t half;
  if (magnitude > 0x7F800000u) {
    half = 0x7E00u | (magnitude >> 13 & 0x03FFu);
  } else if (magnitude >= 0x47800000u) {  // at least 2^16
    half = 0x7C00u;
  } else if (magnitude < 0x38800000u) {  // below 2^-14: the addition rounds to units of 2^-24
    half = BitsOf(FloatOf(magnitude) + 0.5f) - BitsOf(0.5f);
  } else {
    half = (magnitude - ((127u - 15u) << 23) + 0x0FFFu + (magnitude >> 13 & 1)) >> 13;
  }
  return {static_cast<uint16_t>(sign | half)};
}

// Returns a value that T, float or bfloat16, can hold.
template <typename T>
TF_ONEBIT_HOST_DEVICE T Narrowed(float value);

template <>
TF_ONEBIT_HOST_DEVICE_MEMBER inline float Narrowed<float>(float value) {
  return value;
}

template <>
TF_ONEBIT_HOST_DEVICE_MEMBER inline bfloat16 Narrowed<bfloat16>(float value) {
  return {static_cast<uint16_t>(BitsOf(value) >> 16)};
}

}  // namespace tf_onebit

#endif  // TF_ONEBIT_LIB_FLOAT16_H_
