"""The compiled ops against the oracle: two steps of a whole exchange, op by op."""

import functools
import math
import types

import numpy as np
import pytest
import tensorflow as tf

from tests.reference.one_bit import Cluster, columns_of
from tests.support.gradients import ROUNDING, as_float64, assert_close, gradients_of
from tf_onebit import ops
from tf_onebit._layout import Layout, column_cut, plain_cut

SHAPES = [(1, 1), (33,), (31, 1), (1, 33), (), (10, 100), (3, 3, 4, 24), (0,), (4, 200)]
MIN_COLUMN_SIZE, MAX_COLUMN_SIZE = 32, 64
STEPS = 2


def is_coded(shape):
    return len(shape) > 1


def coded_values(tensors):
    """Returns the values of all columns, one after the other, as a residual has them."""
    values = [as_float64(tensor).ravel() for tensor in tensors if is_coded(tensor.shape)]
    return np.concatenate(values)


@functools.cache
def all_columns():
    slices, start = [], 0
    for shape in filter(is_coded, SHAPES):
        columns = columns_of(shape, MIN_COLUMN_SIZE, MAX_COLUMN_SIZE)
        slices += [slice(start + column.start, start + column.stop) for column in columns]
        start += int(np.prod(shape))
    return slices, start


def run(world_size, dtype, levels, error_feedback=True, bits=1, scaled=False):
    """Runs some steps with ops and oracle, and returns the results of both."""
    rng = np.random.default_rng(7)
    layout = Layout(
        [
            (int(np.prod(shape)), *column_cut(shape, MIN_COLUMN_SIZE, MAX_COLUMN_SIZE))
            if is_coded(shape)
            else plain_cut(shape)
            for shape in SHAPES
        ],
        world_size,
    )
    settings = {"levels": levels, "error_feedback": error_feedback}
    scales = rng.uniform(0.5, 2.0, size=layout.size).astype(np.float32) if scaled else None
    oracle = Cluster(world_size, *all_columns(), **settings, bits=bits)
    oracle.scales = 1.0 if scales is None else scales.astype(np.float64)
    residuals = [tf.Variable(tf.zeros([layout.size])) for _ in range(world_size)]
    if error_feedback:
        # The sum of a few codes has many equal values. Without a residual, rounding alone would
        # decide about the second bit of their errors.
        oracle.owners.residual = rng.normal(size=layout.size).astype(np.float32)
    ends = np.cumsum(layout.shard_sizes)[:-1]
    starts = np.split(oracle.owners.residual.astype(np.float32), ends)
    shard_residuals, fused_residuals = (list(map(tf.Variable, starts)) for _ in range(2))
    for _ in range(STEPS):
        gradients = [gradients_of(rng, SHAPES, dtype) for _ in range(world_size)]
        encoded = [
            ops.one_bit_encode(mine, residual, layout, **settings, value_scales=scales)
            for mine, residual in zip(gradients, residuals, strict=True)
        ]
        received = tf.stack([messages for messages, _ in encoded], axis=1)
        sums = [ops.one_bit_decode_sum(received[k], layout, k) for k in range(world_size)]
        sent = [
            ops.one_bit_encode_shard(aggregate, residual, layout, k, **settings, bits=bits)
            for k, ((aggregate, _), residual) in enumerate(zip(sums, shard_residuals, strict=True))
        ]
        fused = [
            ops.one_bit_aggregate(received[k], residual, layout, k, **settings, bits=bits)
            for k, residual in enumerate(fused_residuals)
        ]
        messages, plain = tf.concat([message for message, _ in sent], axis=0), sums[0][1]
        exchanged = ops.one_bit_decode(
            messages, plain, gradients[0], layout, 1 / world_size, bits, scales
        )
        expected_sum = oracle.exchange([coded_values(mine) for mine in gradients])
    return types.SimpleNamespace(**{k: v for k, v in locals().items() if k != "rng"})


def split_plain(tensors):
    return [as_float64(tensor) for tensor in tensors if not is_coded(tensor.shape)]


@pytest.mark.parametrize(
    "settings",
    [{"bits": 1}, {"bits": 2}, {"error_feedback": False}, {"bits": 2, "scaled": True}],
    ids=["feedback", "two_bits", "no_feedback", "scaled"],
)
@pytest.mark.parametrize("levels", ["mean", "symmetric"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8])
def test_two_steps_are_those_of_the_oracle(world_size, dtype, levels, settings):
    result = run(world_size, dtype, levels, **settings)
    assert_that_aggregate_is_the_sum_of_what_workers_sent(result)
    assert_that_worker_residual_is_what_was_not_sent(result)
    assert_that_shard_residual_is_what_was_not_sent(result)
    assert_that_decoded_gradients_are_the_scaled_sum(result, world_size, dtype)
    assert_that_plain_tensors_are_summed_in_float32(result, world_size, dtype)
    assert_that_exchanged_gradients_have_the_shapes_and_the_dtype_of_the_local_ones(result, dtype)
    assert_that_sum_of_squares_is_that_of_the_residual(result)
    assert_that_aggregate_op_gives_the_bits_of_its_two_halves(result)
    assert_that_flags_of_finite_gradients_are_zero(result)


def assert_that_aggregate_is_the_sum_of_what_workers_sent(result):
    aggregate = np.concatenate([aggregate for aggregate, _ in result.sums])
    assert_close(aggregate, result.oracle.aggregate)


def assert_that_worker_residual_is_what_was_not_sent(result):
    for residual, worker in zip(result.residuals, result.oracle.workers, strict=True):
        assert_close(residual, worker.residual)


def assert_that_shard_residual_is_what_was_not_sent(result):
    residual = np.concatenate([variable.numpy() for variable in result.shard_residuals])
    assert_close(residual, result.oracle.owners.residual)


def assert_that_decoded_gradients_are_the_scaled_sum(result, world_size, dtype):
    expected = result.expected_sum / world_size
    # Scaled values are rounded twice.
    roundings = 1 if result.scales is None else 2
    assert_close(coded_values(result.exchanged), expected, relative=roundings * ROUNDING[dtype])


def assert_that_plain_tensors_are_summed_in_float32(result, world_size, dtype):
    plain = map(split_plain, result.gradients)
    sums = [np.sum(tensors, axis=0) for tensors in zip(*plain, strict=True)]
    for _, plain_of_rank in result.sums:
        assert_close(plain_of_rank, np.concatenate([total.ravel() for total in sums]))
    for tensor, total in zip(split_plain(result.exchanged), sums, strict=True):
        assert tensor.shape == total.shape
        assert_close(tensor, total / world_size, relative=ROUNDING[dtype])


def assert_that_exchanged_gradients_have_the_shapes_and_the_dtype_of_the_local_ones(result, dtype):
    assert [tuple(tensor.shape) for tensor in result.exchanged] == SHAPES
    assert {tensor.dtype.name for tensor in result.exchanged} == {dtype}


def assert_that_sum_of_squares_is_that_of_the_residual(result):
    for (_, squares), residual in zip(result.encoded, result.residuals, strict=True):
        assert_close(squares, np.square(as_float64(residual)).sum(), relative=1e-5)
    for (_, squares), residual in zip(result.sent, result.shard_residuals, strict=True):
        assert_close(squares, np.square(as_float64(residual)).sum(), relative=1e-5)


def assert_that_aggregate_op_gives_the_bits_of_its_two_halves(result):
    for rank, (message, squares, plain) in enumerate(result.fused):
        np.testing.assert_array_equal(message, result.sent[rank][0])
        np.testing.assert_array_equal(squares, result.sent[rank][1])
        np.testing.assert_array_equal(plain, result.sums[rank][1])
        np.testing.assert_array_equal(result.fused_residuals[rank], result.shard_residuals[rank])


def assert_that_flags_of_finite_gradients_are_zero(result):
    assert not np.any(result.received[:, :, 0])
    assert not np.any(result.messages[:, 0])


def bytes_of(tensors):
    return [tensor.numpy().tobytes() for tensor in tensors]


@pytest.mark.parametrize("bits", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_scaled_ops_have_the_bits_of_a_division_and_of_a_multiplication(rng, dtype, bits):
    result = run(2, dtype, "mean", bits=bits)
    layout, gradients = result.layout, result.gradients[0]
    scales = tf.constant(rng.uniform(0.01, 3.0, size=layout.size), tf.float32)
    parts = iter(tf.split(scales, [math.prod(shape) for shape in SHAPES if is_coded(shape)]))
    factors = [
        tf.reshape(next(parts), shape) if is_coded(shape) else tf.ones(shape) for shape in SHAPES
    ]
    divided = [tf.cast(g, tf.float32) / s for g, s in zip(gradients, factors, strict=True)]
    residuals = [tf.Variable(result.residuals[0]) for _ in range(2)]
    separate = ops.one_bit_encode(divided, residuals[0], layout)
    fused = ops.one_bit_encode(gradients, residuals[1], layout, value_scales=scales)
    assert bytes_of(fused) == bytes_of(separate)
    assert bytes_of(residuals[1:]) == bytes_of(residuals[:1])
    arguments = result.messages, result.plain, gradients, layout, 0.3, bits
    decoded = ops.one_bit_decode(*arguments)
    products = [tf.cast(g, tf.float32) * s for g, s in zip(decoded, factors, strict=True)]
    fused = ops.one_bit_decode(*arguments, value_scales=scales)
    assert bytes_of(fused) == bytes_of([tf.cast(product, dtype) for product in products])


@pytest.mark.parametrize("is_scaled", [False, True], ids=["unscaled", "scaled"])
@pytest.mark.parametrize("bits", [1, 2])
@pytest.mark.parametrize("world_size", [1, 3])
def test_decoded_values_are_added_with_the_bits_of_an_addition(rng, world_size, bits, is_scaled):
    result = run(world_size, "float32", "mean", bits=bits)
    before = [tf.constant(rng.normal(size=shape), tf.float32) for shape in SHAPES]
    variables = list(map(tf.Variable, before))
    size, factor = result.layout.size, tf.constant(-0.3)
    scales = tf.constant(rng.uniform(0.01, 3.0, size=size), tf.float32) if is_scaled else None
    received = result.messages, result.plain
    decoded = ops.one_bit_decode(*received, before, result.layout, 0.7, bits, scales)
    ops.one_bit_decode_add(variables, *received, result.layout, factor, 0.7, bits, scales)
    expected = [value + factor * change for value, change in zip(before, decoded, strict=True)]
    assert bytes_of(variables) == bytes_of(expected) != bytes_of(before)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_squares_of_updates_are_followed(rng, dtype):
    layout = run(1, dtype, "mean").layout
    squares = tf.Variable(tf.zeros([layout.size]))
    expected = np.zeros(layout.size)
    for _ in range(3):
        updates = gradients_of(rng, SHAPES, dtype)
        ops.one_bit_learn_scales(updates, squares, layout)
        expected = 0.95 * expected + 0.05 * coded_values(updates) ** 2
    np.testing.assert_allclose(squares, expected, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_squares_of_values_that_are_not_finite_are_not_followed(value):
    layout = Layout([(70, 35, 35)], world_size=1)
    squares = tf.Variable(tf.ones([70]))
    bad = np.arange(70) % 10 == 3
    ops.one_bit_learn_scales([tf.constant(np.where(bad, value, 0.0), tf.float32)], squares, layout)
    np.testing.assert_array_equal(squares, np.where(bad, 1.0, 0.95).astype(np.float32))
