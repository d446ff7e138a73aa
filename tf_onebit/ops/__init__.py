"""Compiled ops: one thin function per op."""

from tf_onebit.ops.block_momentum import (
    block_difference,
    block_update,
    late_block_update,
    moments_update,
)
from tf_onebit.ops.one_bit import (
    one_bit_aggregate,
    one_bit_decode,
    one_bit_decode_add,
    one_bit_decode_sum,
    one_bit_encode,
    one_bit_encode_shard,
    one_bit_learn_scales,
)
from tf_onebit.ops.threshold import (
    golomb_rice_decode,
    golomb_rice_encode,
    threshold_apply,
    threshold_clear,
    threshold_decode_add,
    threshold_decode_sum,
    threshold_encode,
)
from tf_onebit.ops.timing import record_time, take_times
from tf_onebit.ops.transforms import adagrad_accumulate, adagrad_normalize, adam, momentum

__all__ = [
    "adagrad_accumulate",
    "adagrad_normalize",
    "adam",
    "block_difference",
    "block_update",
    "golomb_rice_decode",
    "golomb_rice_encode",
    "late_block_update",
    "moments_update",
    "momentum",
    "one_bit_aggregate",
    "one_bit_decode",
    "one_bit_decode_add",
    "one_bit_decode_sum",
    "one_bit_encode",
    "one_bit_encode_shard",
    "one_bit_learn_scales",
    "record_time",
    "take_times",
    "threshold_apply",
    "threshold_clear",
    "threshold_decode_add",
    "threshold_decode_sum",
    "threshold_encode",
]
