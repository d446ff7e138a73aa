#include "kernels/one_bit_columns_loops.h"
#include "kernels/simd_avx2.h"

namespace tf_onebit {

extern const OneBitColumns kOneBitColumnsAvx2;
const OneBitColumns kOneBitColumnsAvx2 = MakeOneBitColumns<Floats, Halves>("avx2");

}  // namespace tf_onebit
