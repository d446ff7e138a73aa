"""The squares of the gradients that are not sent yet, by variable."""

import numpy as np
import pytest
import tensorflow as tf

from tf_onebit import Delayed, OneBit, Threshold, WarmStart
from tf_onebit.collectives import lockstep
from tf_onebit.exchanges import Bucketed, GradientSpec

SHAPES = {"first": (64, 64), "bias": (64,), "second": (64, 33), "excluded": (40, 40)}


def exchanges_after_steps(template):
    exchanges = [Bucketed(template) for _ in range(2)]
    specs = [GradientSpec(name, shape, "float32") for name, shape in SHAPES.items()]
    rng = np.random.default_rng(0)
    for rank, exchange in enumerate(exchanges):
        exchange.build(specs, rank, 2, "test")
    for _ in range(3):
        lockstep.run(
            (e.run if e.delivers() else e.hold)(
                [tf.constant(rng.standard_normal(s), tf.float32) for s in SHAPES.values()]
            )
            for e in exchanges
        )
    return exchanges


ARGUMENTS = {"bucket_bytes": 2**14, "exclude": ["excluded"]}


@pytest.mark.parametrize(
    ("template", "names"),
    [
        (OneBit(**ARGUMENTS), {"first", "second"}),
        (Threshold(1.0, **ARGUMENTS), {"first", "bias", "second"}),
        (WarmStart(OneBit(**ARGUMENTS), steps=1), {"first", "second"}),
        (Delayed(OneBit(**ARGUMENTS)), {"first", "second"}),
        (OneBit(error_feedback=False, **ARGUMENTS), set()),
    ],
    ids=["one_bit", "threshold", "warm_start", "delayed", "no_error_feedback"],
)
def test_squares_of_variables_add_up_to_those_of_all(template, names):
    for exchange in exchanges_after_steps(template):
        squares = exchange.residual_squares()
        assert set(squares) == names
        if names:
            total = exchange.residual_sum_of_squares()
            assert sum(squares.values()) == pytest.approx(total, rel=1e-4)


def test_squares_are_those_of_the_residuals_of_worker_and_shard():
    first, second = exchanges_after_steps(OneBit(bucket_bytes=2**20))
    one_bit, other = first.buckets[0].exchange, second.buckets[0].exchange
    # In the order of the bucket, which begins with the last variable.
    begin, end = 40 * 40, 40 * 40 + 64 * 33
    shards = np.concatenate([one_bit.shard_residual, other.shard_residual])
    split = one_bit.layout.shard_sizes[0]
    of_worker = np.sum(np.square(one_bit.worker_residual[begin:end]))
    of_shard = np.sum(np.square(shards[begin : min(end, split)]))
    squares = first.residual_squares()
    assert squares["second"] == pytest.approx(of_worker + of_shard, rel=1e-5)


def test_variables_of_one_name_are_added_up():
    exchange = Bucketed(OneBit(bucket_bytes=1))  # a bucket for each
    exchange.build([GradientSpec("kernel", (64, 64), "float32")] * 2, 0, 1, "test")
    first, second = (bucket.exchange for bucket in exchange.buckets)
    first.worker_residual.assign(tf.ones_like(first.worker_residual))
    second.worker_residual.assign(2 * tf.ones_like(second.worker_residual))
    assert exchange.residual_squares() == {"kernel": pytest.approx(5 * 64 * 64)}
