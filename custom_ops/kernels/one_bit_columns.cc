#include "kernels/one_bit_columns.h"

#include "kernels/simd.h"

namespace tf_onebit {

extern const OneBitColumns kOneBitColumnsAvx512;
extern const OneBitColumns kOneBitColumnsAvx2;
extern const OneBitColumns kOneBitColumnsPlain;

namespace {

constexpr const OneBitColumns* kTables[] = {
#ifdef __x86_64__
    &kOneBitColumnsAvx512, &kOneBitColumnsAvx2,
#endif
    &kOneBitColumnsPlain, nullptr};

}  // namespace

const OneBitColumns* const* SupportedOneBitColumns() { return kTables + WidestSimd(); }

const OneBitColumns& GetOneBitColumns() { return *kTables[ChosenSimd()]; }

}  // namespace tf_onebit
