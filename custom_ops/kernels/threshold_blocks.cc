#include "kernels/threshold_blocks.h"

#include "kernels/simd.h"

namespace tf_onebit {

extern const ThresholdBlocks kThresholdBlocksAvx512;
extern const ThresholdBlocks kThresholdBlocksAvx2;
extern const ThresholdBlocks kThresholdBlocksPlain;

namespace {

constexpr const ThresholdBlocks* kTables[] = {
#ifdef __x86_64__
    &kThresholdBlocksAvx512, &kThresholdBlocksAvx2,
#endif
    &kThresholdBlocksPlain, nullptr};

}  // namespace

const ThresholdBlocks* const* SupportedThresholdBlocks() { return kTables + WidestSimd(); }

const ThresholdBlocks& GetThresholdBlocks() { return *kTables[ChosenSimd()]; }

}  // namespace tf_onebit
