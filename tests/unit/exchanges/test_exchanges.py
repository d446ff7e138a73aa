"""The promises of every exchange, as one suite over all of them."""

import collections
import dataclasses
import types

import numpy as np
import pytest
import tensorflow as tf

from tests.support.gradients import (
    ROUNDING,
    as_float64,
    build_workers,
    exchange,
    gradients_of,
    specs_of,
)
from tests.support.nightly import nightly_rows
from tests.support.ranks import count_bytes
from tests.support.transforms import DivideByTotal
from tf_onebit import FullPrecision, OneBit, Threshold, WarmStart
from tf_onebit.exchanges import Bucketed
from tf_onebit.exchanges.indexed_slices import SparseGather
from tf_onebit.transforms import Momentum, NormalizedAdaGrad

SHAPES = [(1, 1), (), (33,), (31, 1), (10, 100), (0,), (3, 3, 4, 24), (1, 33), (4, 200)]
SMALL = {"min_column_size": 32, "max_column_size": 64, "min_size": 30}
EXCHANGES = {
    "full_precision": FullPrecision(),
    "one_bit": OneBit(**SMALL),
    "one_bit_by_default": OneBit(),
    "symmetric": OneBit(levels="symmetric", **SMALL),
    "no_feedback": OneBit(error_feedback=False, **SMALL),
    "two_bits": OneBit(aggregate_bits=2, **SMALL),
    "warm_start": WarmStart(OneBit(**SMALL), steps=2),
    "transformed": OneBit(transforms=[DivideByTotal(), DivideByTotal()], **SMALL),
    "adagrad": OneBit(
        transforms=[NormalizedAdaGrad(99, 9), Momentum(0.5)],
        local_transforms=[Momentum(0.5, nesterov=True), NormalizedAdaGrad(99, 9)],
        **SMALL,
    ),
    "adagrad_after_warm_start": WarmStart(
        OneBit(transforms=[NormalizedAdaGrad(99, 9)], bucket_bytes=1000, **SMALL), steps=2
    ),
    "excluded": OneBit(exclude=["layer_4", "layer_6/"], **SMALL),
    "many_buckets": OneBit(bucket_bytes=1000, **SMALL),
    "full_precision_in_many_buckets": FullPrecision(bucket_bytes=1000),
    "threshold": Threshold(0.5),
    "threshold_by_default": Threshold(),
    "threshold_of_density": Threshold(target_density=0.2),
    "threshold_of_the_largest": Threshold(target_density=0.2, selection="top_k"),
    "threshold_coded": Threshold(0.5, coding="golomb_rice"),
    "threshold_in_many_buckets": Threshold(
        target_density=0.2, coding="golomb_rice", bucket_bytes=1000
    ),
    "threshold_after_warm_start": WarmStart(Threshold(0.5, bucket_bytes=1000), steps=2),
}
STEPS = 3


def run(name, dtype, world_size):
    """Runs some steps of an exchange, and returns their inputs and results."""
    rng = np.random.default_rng(11)
    workers = build_workers(Bucketed(EXCHANGES[name]), specs_of(SHAPES, dtype), world_size)
    steps = []
    for _ in range(STEPS):
        gradients = [gradients_of(rng, SHAPES, dtype) for _ in range(world_size)]
        sent_bytes = [[] for _ in range(world_size)]
        observed = [
            types.SimpleNamespace(
                run=lambda mine, scale, worker=worker, sent=sent: count_bytes(
                    worker.run(mine, scale), world_size, sent
                )
            )
            for worker, sent in zip(workers, sent_bytes, strict=True)
        ]
        exchanged, flags = exchange(observed, gradients, scale=1 / world_size)
        reported_bytes = [worker.bytes_sent() for worker in workers]
        steps.append((gradients, exchanged, flags, list(map(sum, sent_bytes)), reported_bytes))
    names = "gradients", "exchanged", "flags", "sent_bytes", "reported_bytes"
    return list(map(collections.namedtuple("Step", names)._make, steps))


# One worker and several, a type that is rounded, and one that is summed exactly.
RUNS = [("bfloat16", 1), ("float32", 2), ("float64", 3)]
OTHER_RUNS = [("float32", 8), ("float16", 3), ("bfloat16", 3)]


@pytest.mark.parametrize("name", EXCHANGES)
@pytest.mark.parametrize(("dtype", "world_size"), [*RUNS, *nightly_rows(*OTHER_RUNS)])
def test_every_exchange_keeps_its_promises(name, dtype, world_size):
    steps = run(name, dtype, world_size)
    for step in steps:
        assert_that_ranks_end_bitwise_equal(step)
        assert_that_shapes_and_dtypes_stay(step, dtype)
        for flags in step.flags:
            assert flags.numpy().tolist() == [0] * world_size
        assert step.reported_bytes == step.sent_bytes
        assert (step.sent_bytes[0] > 0) == (world_size > 1)
        if not name.startswith(("transformed", "adagrad")):
            # test_one_bit.py and test_transforms.py test transforms.
            assert_that_what_is_not_quantized_is_the_scaled_sum(step, name, dtype, world_size)
    assert_that_what_is_exchanged_is_not_zero(steps, name, dtype)


def assert_that_ranks_end_bitwise_equal(step):
    for mine in step.exchanged[1:]:
        for tensor, first in zip(mine, step.exchanged[0], strict=True):
            assert as_float64(tensor).tobytes() == as_float64(first).tobytes()


def assert_that_shapes_and_dtypes_stay(step, dtype):
    for mine in step.exchanged:
        assert [tuple(tensor.shape) for tensor in mine] == SHAPES
        assert {tensor.dtype.name for tensor in mine} == {dtype}


def assert_that_what_is_exchanged_is_not_zero(steps, name, dtype):
    if name.startswith("threshold") and dtype != "float64":
        # Most values wait. In the first exchange all of them may.
        assert any(np.any(as_float64(tensor)) for tensor in steps[-1].exchanged[0])
        return
    for step in steps:
        for tensor, shape in zip(step.exchanged[0], SHAPES, strict=True):
            assert np.any(as_float64(tensor)) or 0 in shape


def is_exact(name, dtype, shape):
    if name.startswith("full_precision") or dtype == "float64":
        return True
    return len(shape) < 2 and not name.startswith("threshold")


def assert_that_what_is_not_quantized_is_the_scaled_sum(step, name, dtype, world_size):
    # Each worker's value may be rounded on the way, and in sums that are larger than it.
    rounding = 2 * world_size * ROUNDING.get(dtype, 1e-15)
    for i, shape in enumerate(SHAPES):
        if is_exact(name, dtype, shape):
            parts = [as_float64(mine[i]) for mine in step.gradients]
            error = np.abs(as_float64(step.exchanged[0][i]) - np.mean(parts, axis=0))
            assert (error <= rounding * np.mean(np.abs(parts), axis=0)).all()


@pytest.mark.parametrize(
    "template", [FullPrecision(), OneBit(), Threshold(0.5)], ids=lambda t: type(t).__name__
)
def test_shapes_need_not_be_known_in_the_graph(template):
    shape, world_size = (64, 32), 2
    workers = build_workers(template, specs_of([shape]), world_size)

    @tf.function(input_signature=[tf.TensorSpec(None), tf.TensorSpec(None)])
    def step(mine, theirs):
        return exchange(workers, [[mine], [theirs]])[0]

    known = build_workers(template, specs_of([shape]), world_size)
    for _ in range(2):
        exchanged = step(tf.ones(shape), tf.ones(shape))
        expected, _ = exchange(known, [[tf.ones(shape)], [tf.ones(shape)]])
        np.testing.assert_array_equal(exchanged[0][0], expected[0][0])
        assert workers[0].bytes_sent() == known[0].bytes_sent()
    assert np.all(exchanged[0][0] > 0)


@pytest.mark.parametrize("sparse", [False, True])
def test_an_overflow_of_the_sum_is_flagged_for_all_ranks(sparse):
    spec = dataclasses.replace(specs_of([(4, 1)], "float16")[0], sparse=sparse)
    good = tf.ones([4, 1], tf.float16)
    large = tf.constant(4e4, tf.float16, [4, 1])
    workers = build_workers(SparseGather() if sparse else FullPrecision(), [spec, spec], 2)

    def flags_of(gradient):
        if sparse:
            good_slices, slices = (tf.IndexedSlices(g, tf.range(4)) for g in (good, gradient))
            return exchange(workers, [[good_slices, slices]] * 2)[1]
        return exchange(workers, [[good, gradient]] * 2)[1]

    np.testing.assert_array_equal(flags_of(good), np.zeros([2, 2]))
    np.testing.assert_array_equal(flags_of(large), np.full([2, 2], 2))
