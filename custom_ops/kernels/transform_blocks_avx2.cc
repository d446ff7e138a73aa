#include "kernels/simd_avx2.h"
#include "kernels/transform_blocks_loops.h"

namespace tf_onebit {

extern const TransformBlocks kTransformBlocksAvx2;
const TransformBlocks kTransformBlocksAvx2 = MakeTransformBlocks<Floats>("avx2");

}  // namespace tf_onebit
