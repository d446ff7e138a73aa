#include "kernels/simd_avx2.h"
#include "kernels/threshold_blocks_loops.h"

namespace tf_onebit {

extern const ThresholdBlocks kThresholdBlocksAvx2;
const ThresholdBlocks kThresholdBlocksAvx2 = MakeThresholdBlocks<Floats, Halves>("avx2");

}  // namespace tf_onebit
