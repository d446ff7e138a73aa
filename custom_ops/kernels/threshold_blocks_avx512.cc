#include "kernels/simd_avx512.h"
#include "kernels/threshold_blocks_loops.h"

namespace tf_onebit {

extern const ThresholdBlocks kThresholdBlocksAvx512;
const ThresholdBlocks kThresholdBlocksAvx512 = MakeThresholdBlocks<Floats, Halves>("avx512");

}  // namespace tf_onebit
