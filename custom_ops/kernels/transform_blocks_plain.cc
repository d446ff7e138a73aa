#include "kernels/simd_plain.h"
#include "kernels/transform_blocks_loops.h"

namespace tf_onebit {

extern const TransformBlocks kTransformBlocksPlain;
const TransformBlocks kTransformBlocksPlain = MakeTransformBlocks<Floats>("plain");

}  // namespace tf_onebit
