"""Exchanges between processes give the same results as among simulated workers."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.nightly import nightly, nightly_rows
from tests.support.ranks import (
    assert_same_bits_on_all_ranks,
    count_bytes,
    digest,
    engine,
    rank,
)
from tf_onebit import FullPrecision, OneBit, Threshold, WarmStart
from tf_onebit.collectives import lockstep
from tf_onebit.exchanges import Bucketed, GradientSpec

STEPS = 4
SHAPES = {
    "dense/kernel": (64, 48),
    "dense/bias": (48,),
    "conv/kernel": (3, 3, 8, 24),
    "small": (5, 7),
    "odd": (33, 100),
    "left_out": (32, 64),
}
EXCHANGES = {
    "full_precision": FullPrecision(),
    "one_bit": OneBit(),
    "symmetric": OneBit(levels="symmetric", max_column_size=32, min_column_size=32),
    "narrow": OneBit(residual_dtype="bfloat16", aggregate_bits=2),
    "buckets": OneBit(bucket_bytes=8192, exclude=["left_out"]),
    "warm_start": WarmStart(OneBit(), steps=STEPS // 2),
    # More and more values exceed it, so messages become longer.
    "threshold": Threshold(1.0, coding="golomb_rice"),
    "density": Threshold(target_density=0.05, bucket_bytes=32768),
    "top_k": Threshold(target_density=0.05, coding="golomb_rice", selection="top_k"),
}
DTYPES = ["float32", "float16", "bfloat16"]
# Each stage of each exchange, and each type. On the wire, sparse messages have one type.
RUNS = [(name, "float32") for name in ("narrow", "warm_start", "threshold", "density", "top_k")]
RUNS += [("full_precision", "bfloat16"), ("one_bit", "float16")]
OTHER_RUNS = [
    *((name, "float32") for name in EXCHANGES if (name, "float32") not in RUNS),
    *(("full_precision", "float16"), ("one_bit", "bfloat16")),
]
# Drivers answer every request alike: see test_driver.py.
horovod_first = pytest.mark.workers(3, engines=["horovod", *nightly("tensorflow")])


def gradients_of(step, rank, dtype):
    rng = np.random.default_rng([step, rank])
    return [tf.constant(rng.standard_normal(shape), dtype) for shape in SHAPES.values()]


def build(template, specs, rank, world_size, scope):
    exchange = Bucketed(template)
    exchange.build(specs, rank, world_size, scope)
    return exchange


def dense_exchange(name, dtype, rank, world_size):
    specs = [GradientSpec(variable, shape, dtype) for variable, shape in SHAPES.items()]
    return build(EXCHANGES[name], specs, rank, world_size, f"exchanges/{name}/{dtype}")


@horovod_first
@pytest.mark.parametrize(("name", "dtype"), [*RUNS, *nightly_rows(*OTHER_RUNS)])
def test_same_bits_as_in_lockstep(name, dtype, world_size):
    mine = dense_exchange(name, dtype, rank(), world_size)
    simulated = [dense_exchange(name, dtype, k, world_size) for k in range(world_size)]
    scale = 1 / world_size

    @tf.function
    def exchange(*gradients):
        return engine().run([mine.run(list(gradients), scale)])[0]

    for step in range(STEPS):
        received, flags = exchange(*gradients_of(step, rank(), dtype))
        expected, _ = lockstep.run(
            [simulated[k].run(gradients_of(step, k, dtype), scale) for k in range(world_size)]
        )[rank()]
        assert flags.numpy().tolist() == [0] * world_size
        assert_same_bits_on_all_ranks(received)
        for tensor, other in zip(received, expected, strict=True):
            np.testing.assert_array_equal(tensor, other)
    # These are residuals and counters. Full precision has none.
    assert digest(mine.variables) == digest(simulated[rank()].variables)


@horovod_first
@pytest.mark.parametrize("name", EXCHANGES)
def test_bytes_sent_is_the_size_of_the_messages(name, world_size):
    exchange = dense_exchange(name, "float32", rank(), world_size)
    for step in range(STEPS):
        gradients = gradients_of(step, rank(), "float32")
        sent_bytes = []
        engine().run([count_bytes(exchange.run(gradients), world_size, sent_bytes)])
        assert exchange.bytes_sent() == sum(sent_bytes)


@horovod_first
@pytest.mark.parametrize("dtype", ["float32", *nightly("float16", "bfloat16")])
def test_indexed_slices_are_summed_exactly(dtype, world_size):
    shape = (6, 3)
    # Rows come twice on a rank and on several ranks; rank 0 has none.
    indices = [(5, 1, 5, k)[: 4 * k] for k in range(world_size)]
    values = [np.full((len(rows), 3), 1.0 + k) for k, rows in enumerate(indices)]
    expected = np.zeros(shape)
    for rows, added in zip(indices, values, strict=True):
        np.add.at(expected, list(rows), added)
    exchange = build(
        OneBit(),
        [GradientSpec("embeddings", shape, dtype, sparse=True)],
        rank(),
        world_size,
        f"slices/{dtype}",
    )

    @tf.function
    def exchanged(values, indices):
        gradient = tf.IndexedSlices(values, indices, tf.constant(shape))
        return engine().run([exchange.run([gradient], scale=0.5)])[0]

    rows = tf.constant(indices[rank()], tf.int64)
    (received,), _ = exchanged(tf.constant(values[rank()], dtype), rows)
    assert received.values.dtype == dtype
    assert len(set(received.indices.numpy())) == len(received.indices)
    dense = tf.scatter_nd(received.indices[:, None], tf.cast(received.values, "float64"), shape)
    np.testing.assert_array_equal(dense, 0.5 * expected)
    assert_same_bits_on_all_ranks([received.values, received.indices])
