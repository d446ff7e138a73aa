#include "kernels/transform_blocks.h"

#include "kernels/simd.h"

namespace tf_onebit {

extern const TransformBlocks kTransformBlocksAvx512;
extern const TransformBlocks kTransformBlocksAvx2;
extern const TransformBlocks kTransformBlocksPlain;

namespace {

constexpr const TransformBlocks* kTables[] = {
#ifdef __x86_64__
    &kTransformBlocksAvx512, &kTransformBlocksAvx2,
#endif
    &kTransformBlocksPlain, nullptr};

}  // namespace

const TransformBlocks* const* SupportedTransformBlocks() { return kTables + WidestSimd(); }

const TransformBlocks& GetTransformBlocks() { return *kTables[ChosenSimd()]; }

}  // namespace tf_onebit
