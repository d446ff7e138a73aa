#include "kernels/simd_plain.h"
#include "kernels/threshold_blocks_loops.h"

namespace tf_onebit {

extern const ThresholdBlocks kThresholdBlocksPlain;
const ThresholdBlocks kThresholdBlocksPlain = MakeThresholdBlocks<Floats, Halves>("plain");

}  // namespace tf_onebit
