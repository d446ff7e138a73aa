#include "kernels/one_bit_columns_loops.h"
#include "kernels/simd_plain.h"

namespace tf_onebit {

extern const OneBitColumns kOneBitColumnsPlain;
const OneBitColumns kOneBitColumnsPlain = MakeOneBitColumns<Floats, Halves>("plain");

}  // namespace tf_onebit
