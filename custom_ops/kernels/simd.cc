#include "kernels/simd.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif

#include <cstdlib>
#include <cstring>
#include <iterator>

namespace tf_onebit {
namespace {

constexpr const char* kNames[] = {
#ifdef __x86_64__
    "avx512", "avx2",
#endif
    "plain"};

#ifdef __x86_64__
// The same as __builtin_cpu_supports("f16c"), which clang 14 does not know.
bool HasF16c() {
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C) != 0;
}
#endif

}  // namespace

int WidestSimd() {
  static const int widest = [] {
    int index = 0;
#ifdef __x86_64__
    // The features that the files of the tables are compiled for.
    const bool has_avx2 =
        HasF16c() && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool has_avx512 =
        has_avx2 && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl");
    if (!has_avx512) ++index;
    if (!has_avx2) ++index;
#endif
    return index;
  }();
  return widest;
}

int ChosenSimd() {
  static const int chosen = [] {
    const char* const name = std::getenv("TF_ONEBIT_SIMD");
    int index = WidestSimd();
    for (int i = index; name != nullptr && i < static_cast<int>(std::size(kNames)); ++i) {
      if (std::strcmp(kNames[i], name) == 0) index = i;
    }
    return index;
  }();
  return chosen;
}

const char* ChosenSimdName() { return kNames[ChosenSimd()]; }

}  // namespace tf_onebit
