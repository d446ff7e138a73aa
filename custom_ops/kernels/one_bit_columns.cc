#include "kernels/one_bit_columns.h"

#include <cstdlib>
#include <cstring>

namespace tf_onebit {

extern const OneBitColumns kOneBitColumnsAvx512;
extern const OneBitColumns kOneBitColumnsAvx2;
extern const OneBitColumns kOneBitColumnsPlain;

const OneBitColumns* const* SupportedOneBitColumns() {
  static const OneBitColumns* const all[] = {
#ifdef __x86_64__
      &kOneBitColumnsAvx512, &kOneBitColumnsAvx2,
#endif
      &kOneBitColumnsPlain, nullptr};
  static const OneBitColumns* const* const widest = [] {
    auto* columns = all;
#ifdef __x86_64__
    // What the files of the tables are compiled for.
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") &&
                          __builtin_cpu_supports("fma");
    const bool has_avx512 =
        has_avx2 && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl");
    if (!has_avx512) ++columns;
    if (!has_avx2) ++columns;
#endif
    return columns;
  }();
  return widest;
}

const OneBitColumns& GetOneBitColumns() {
  static const OneBitColumns& chosen = []() -> const OneBitColumns& {
    const OneBitColumns* const* const supported = SupportedOneBitColumns();
    if (const char* name = std::getenv("TF_ONEBIT_SIMD")) {
      for (auto* columns = supported; *columns != nullptr; ++columns) {
        if (std::strcmp((*columns)->name, name) == 0) return **columns;
      }
    }
    return **supported;
  }();
  return chosen;
}

}  // namespace tf_onebit
