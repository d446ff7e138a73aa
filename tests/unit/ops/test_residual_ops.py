"""Residuals in bfloat16 in the ops: everything else has the bits of residuals in float32."""

import numpy as np
import pytest
import tensorflow as tf

from tests.reference.one_bit import columns_of, stored_as_bfloat16
from tests.support.gradients import gradient_values
from tests.unit.ops.test_ops_errors import refuses
from tf_onebit import ops
from tf_onebit._layout import Layout, column_cut

# Columns for every kernel of a GPU: the last are too long for the registers of a warp.
SHAPES = [(31, 1), (2, 97), (5, 512), (3, 1024), (2, 5000)]
SIZES = 32, 8192
LAYOUT = Layout([(rows * row, *column_cut((rows, row), *SIZES)) for rows, row in SHAPES], 1)
every_rule = pytest.mark.parametrize("levels", ["mean", "symmetric"])


def columns():
    start = 0
    for shape in SHAPES:
        for column in columns_of(shape, *SIZES):
            yield slice(start + column.start, start + column.stop)
        start += shape[0] * shape[1]


def narrow(rng):
    """Returns residuals that bfloat16 can hold: float32 array."""
    values = gradient_values(rng, (LAYOUT.size,)).astype(np.float32)
    return tf.cast(tf.cast(values, tf.bfloat16), tf.float32).numpy()


def row_of(message, row):
    """Returns the values that one row of a message about all values stands for."""
    like = [tf.zeros([size]) for size in LAYOUT.sizes]
    return np.concatenate(ops.one_bit_decode(message[row : row + 1], tf.zeros([0]), like, LAYOUT))


def stored(corrected, sent, levels):
    """Returns what is left of values, as bfloat16 holds it.

    Args:
        corrected, sent: float32 arrays.
        levels: rule of the levels. By "symmetric" a column may have one level alone.
    """
    result = np.empty_like(corrected)
    for column in columns():
        mine, rest = sent[column], corrected[column] - sent[column]
        pair = np.float32([mine.min(), mine.max()])
        if levels == "mean":
            # A side without values has the level 0.
            pair = np.float32([min(pair[0], 0), max(pair[1], 0)])
        result[column] = stored_as_bfloat16(rest, pair)
    return result


def as_float32(variable):
    return variable.numpy().astype(np.float32)


@every_rule
@pytest.mark.parametrize("scaled", [False, True], ids=["unscaled", "scaled"])
def test_encode_rounds_what_it_would_store_in_float32(rng, levels, scaled):
    scales = rng.uniform(0.5, 2, LAYOUT.size).astype(np.float32) if scaled else None
    for dtype in (tf.float32, tf.bfloat16):
        gradients = [
            tf.cast(gradient_values(rng, (size,)).astype(np.float32), dtype)
            for size in LAYOUT.sizes
        ]
        before = narrow(rng)
        wide, residual = tf.Variable(before), tf.Variable(tf.cast(before, tf.bfloat16))
        expected, _ = ops.one_bit_encode(gradients, wide, LAYOUT, levels, value_scales=scales)
        messages, squares = ops.one_bit_encode(
            gradients, residual, LAYOUT, levels, value_scales=scales
        )
        np.testing.assert_array_equal(messages, expected)
        given = np.concatenate([tf.cast(g, tf.float32).numpy() for g in gradients])
        corrected = (given / scales if scaled else given) + before
        rest = stored(corrected, row_of(messages, 0), levels)
        np.testing.assert_array_equal(as_float32(residual), rest)
        assert float(squares) == pytest.approx(np.square(rest, dtype=np.float64).sum(), rel=1e-4)


@every_rule
@pytest.mark.parametrize("bits", [1, 2])
@pytest.mark.parametrize("fused", [False, True], ids=["encode_shard", "aggregate"])
def test_owners_round_what_each_row_leaves(rng, levels, bits, fused):
    gradients = [gradient_values(rng, (size,)).astype(np.float32) for size in LAYOUT.sizes]
    received, _ = ops.one_bit_encode(gradients, tf.Variable(narrow(rng)), LAYOUT, levels)
    aggregate, _ = ops.one_bit_decode_sum(received, LAYOUT, 0)
    before = narrow(rng)
    residual = tf.Variable(tf.cast(before, tf.bfloat16))
    encode = ops.one_bit_aggregate if fused else ops.one_bit_encode_shard
    source = received if fused else aggregate
    message, squares, *_ = encode(source, residual, LAYOUT, 0, levels, bits=bits)
    rest = aggregate.numpy() + before
    for row in range(bits):
        rest = stored(rest, row_of(message, row), levels)
    np.testing.assert_array_equal(as_float32(residual), rest)
    assert float(squares) == pytest.approx(np.square(rest, dtype=np.float64).sum(), rel=1e-4)


def test_a_residual_that_somebody_still_reads_keeps_its_values_for_them(rng):
    gradients = [gradient_values(rng, (size,)).astype(np.float32) for size in LAYOUT.sizes]
    before = narrow(rng)
    residual = tf.Variable(tf.cast(before, tf.bfloat16))
    still_read = residual.read_value()
    ops.one_bit_encode(gradients, residual, LAYOUT)
    np.testing.assert_array_equal(tf.cast(still_read, tf.float32), before)
    assert (as_float32(residual) != before).any()


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32"])
def test_residuals_of_other_types_are_refused(dtype):
    gradients = [tf.zeros([size]) for size in LAYOUT.sizes]
    residual = tf.Variable(tf.zeros([LAYOUT.size], dtype))
    with refuses("residual must be a float32 or bfloat16 variable. Received: dtype="):
        ops.one_bit_encode(gradients, residual, LAYOUT)
