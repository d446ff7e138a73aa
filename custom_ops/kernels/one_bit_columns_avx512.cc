#include "kernels/one_bit_columns_loops.h"
#include "kernels/simd_avx512.h"

namespace tf_onebit {

extern const OneBitColumns kOneBitColumnsAvx512;
const OneBitColumns kOneBitColumnsAvx512 = MakeOneBitColumns<Floats, Halves>("avx512");

}  // namespace tf_onebit
