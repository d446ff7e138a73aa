"""Gradients that are not finite are flagged. They stay out of message and residual."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.gradients import gradients_of
from tf_onebit import ops
from tf_onebit._layout import Layout

COLUMNS, COLUMN_SIZE = 3, 100
VALUES = COLUMNS * COLUMN_SIZE
SHAPES = [(5,), (COLUMNS, COLUMN_SIZE), (5,), (COLUMNS, COLUMN_SIZE)]
LAYOUT = Layout([(5, 0, 0), (VALUES, COLUMN_SIZE, COLUMN_SIZE)] * 2, world_size=2)
HUGE = 3e38

every_dtype = pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
every_rule = pytest.mark.parametrize("levels", ["mean", "symmetric"])
every_value = pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
every_position = pytest.mark.parametrize("position", [0, 31, 99, 100, 163, VALUES - 1])


def with_value(gradient, position, value):
    flat = gradient.numpy().ravel()
    flat[position] = value
    return tf.constant(flat.reshape(gradient.shape))


def encode(gradients, levels="mean", scales=None):
    """Returns the decoded sums of one worker, its flags, its residual before and after."""
    before = np.random.default_rng(3).normal(size=LAYOUT.size).astype(np.float32)
    residual = tf.Variable(before)
    messages, squares = ops.one_bit_encode(gradients, residual, LAYOUT, levels, value_scales=scales)
    # The other worker sent zeros.
    received = [tf.stack([row, tf.zeros_like(row)]) for row in messages]
    sums = [ops.one_bit_decode_sum(received[rank], LAYOUT, rank) for rank in range(2)]
    sent = np.concatenate([aggregate.numpy() for aggregate, _ in sums])
    return sent, messages[:, 0].numpy().tolist(), before, residual.numpy(), float(squares)


@every_dtype
@every_rule
@every_value
@every_position
def test_column_with_the_value_is_sent_as_zeros_and_keeps_its_residual(
    rng, dtype, levels, value, position
):
    gradients = gradients_of(rng, SHAPES, dtype)
    clean_sent, _, _, clean_residual, _ = encode(gradients, levels)
    gradients[1] = with_value(gradients[1], position, value)
    sent, flags, before, residual, squares = encode(gradients, levels)
    column = np.arange(LAYOUT.size) // COLUMN_SIZE == position // COLUMN_SIZE
    assert flags == [2, 2]
    np.testing.assert_array_equal(sent, np.where(column, 0, clean_sent))
    np.testing.assert_array_equal(residual, np.where(column, before, clean_residual))
    # The Monitor's norm stays a number: the norm of the other columns.
    expected_squares = np.square(clean_residual[~column], dtype=np.float64).sum()
    np.testing.assert_allclose(squares, expected_squares, rtol=1e-5)


@every_dtype
@every_value
@pytest.mark.parametrize("position", [0, 3, 4])
def test_value_in_a_plain_tensor_is_flagged_and_changes_no_column(rng, dtype, value, position):
    gradients = gradients_of(rng, SHAPES, dtype)
    clean_sent, _, _, clean_residual, _ = encode(gradients)
    gradients[2] = with_value(gradients[2], position, value)
    sent, flags, _, residual, _ = encode(gradients)
    assert flags == [3, 3]
    np.testing.assert_array_equal(sent, clean_sent)
    np.testing.assert_array_equal(residual, clean_residual)


@pytest.mark.parametrize("tensors", [(0, 3), (1, 2), (2, 3), (0, 1, 2, 3)])
def test_flag_names_the_first_tensor(rng, tensors):
    gradients = gradients_of(rng, SHAPES)
    for tensor in tensors:
        gradients[tensor] = with_value(gradients[tensor], -1, np.nan)
    _, flags, *_ = encode(gradients)
    assert flags == [1 + tensors[0]] * 2


@every_rule
def test_sum_that_overflows_is_flagged(levels):
    gradients = [tf.zeros(shape) for shape in SHAPES]
    gradients[3] = tf.fill(SHAPES[3], HUGE)
    sent, flags, *_ = encode(gradients, levels)
    assert flags == [4, 4]
    assert np.isfinite(sent).all()


@every_rule
def test_quotient_that_overflows_is_flagged(levels):
    gradients = [tf.zeros(shape) for shape in SHAPES]
    gradients[1] = with_value(gradients[1], COLUMN_SIZE, HUGE)
    scales = tf.fill([LAYOUT.size], 0.01)
    sent, flags, before, residual, _ = encode(gradients, levels, scales)
    assert flags == [2, 2]
    assert np.isfinite(sent).all()
    column = slice(COLUMN_SIZE, 2 * COLUMN_SIZE)
    np.testing.assert_array_equal(residual[column], before[column])


@every_value
def test_value_is_flagged_without_error_feedback(rng, value):
    gradients = gradients_of(rng, SHAPES)
    gradients[1] = with_value(gradients[1], 7, value)
    no_residual = tf.Variable(tf.zeros([0]))
    messages, _ = ops.one_bit_encode(gradients, no_residual, LAYOUT, error_feedback=False)
    assert messages[:, 0].numpy().tolist() == [2, 2]


@every_rule
@every_value
@every_position
@pytest.mark.parametrize("bits", [1, 2])
def test_column_of_an_aggregate_is_flagged_and_keeps_its_residual(
    rng, levels, value, position, bits
):
    rank = 1  # The owner of the second matrix, which is gradient 3.
    aggregate = gradients_of(rng, [(VALUES,)])[0]
    before = rng.normal(size=VALUES).astype(np.float32)

    def encode_shard(aggregate):
        residual = tf.Variable(before)
        message, _ = ops.one_bit_encode_shard(aggregate, residual, LAYOUT, rank, levels, bits=bits)
        return message.numpy(), residual.numpy()

    clean_message, clean_residual = encode_shard(aggregate)
    message, residual = encode_shard(with_value(aggregate, position, value))
    column = np.arange(VALUES) // COLUMN_SIZE == position // COLUMN_SIZE
    np.testing.assert_array_equal(clean_message[:, 0], 0)
    np.testing.assert_array_equal(message[:, 0], 4)
    np.testing.assert_array_equal(residual, np.where(column, before, clean_residual))


def test_aggregate_that_overflows_is_flagged():
    layout = Layout([(64, 1, 1)], world_size=2)  # Columns have one value, which is their level.
    residual = tf.Variable(tf.zeros([layout.size]))
    messages, _ = ops.one_bit_encode([tf.fill([64], HUGE)], residual, layout)
    assert messages[0, 0] == 0
    received = tf.stack([messages[0], messages[0]])
    shard_residual = tf.Variable(tf.zeros(layout.shard_sizes[:1]))
    message, _, _ = ops.one_bit_aggregate(received, shard_residual, layout, rank=0)
    assert message[0, 0] == 1
    assert not np.any(shard_residual)
