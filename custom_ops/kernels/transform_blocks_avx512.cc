#include "kernels/simd_avx512.h"
#include "kernels/transform_blocks_loops.h"

namespace tf_onebit {

extern const TransformBlocks kTransformBlocksAvx512;
const TransformBlocks kTransformBlocksAvx512 = MakeTransformBlocks<Floats>("avx512");

}  // namespace tf_onebit
