"""Memory that the threshold ops write, and memory that they must leave alone."""

import numpy as np
import pytest
import tensorflow as tf

from tests.reference import threshold as oracle
from tests.support.gradients import flat, gradients_of
from tests.unit.ops.test_threshold_ops import variable_of, write
from tf_onebit import ops


@pytest.fixture
def gradients(rng):
    return gradients_of(rng, [(2, 32), (5,)])


@pytest.fixture
def residual(rng):
    return variable_of(rng.normal(size=69))


def encode(gradients, residual):
    return ops.threshold_encode(gradients, residual, 0.1, 1.0, 69, [64, 5])


def test_a_residual_that_somebody_still_reads_keeps_its_values_for_them(gradients, residual):
    still_read = residual.read_value()
    before = still_read.numpy().copy()
    encode(gradients, residual)
    np.testing.assert_array_equal(still_read, before)
    assert np.mean(residual.numpy() != before) > 0.5


def test_a_variable_that_somebody_still_reads_keeps_its_values_for_them(gradients, residual):
    variable = tf.Variable(tf.zeros([69]))
    still_read = variable.read_value()
    ops.threshold_apply([variable], encode(gradients, residual)[tf.newaxis])
    assert not np.any(still_read)
    assert np.mean(variable.numpy() != 0) > 0.5


def test_gradients_are_not_changed(gradients, residual):
    before = [gradient.numpy().copy() for gradient in gradients]
    message = encode(gradients, residual)
    ops.threshold_decode_sum(message[tf.newaxis], gradients, [64, 5])
    for gradient, values in zip(gradients, before, strict=True):
        np.testing.assert_array_equal(gradient, values)


def test_decode_leaves_gradients_that_are_still_read(gradients, residual):
    message = encode(gradients, residual)

    @tf.function
    def decode_beside_a_reader(first, second):
        locals_ = [first * 1.0, second * 1.0]
        return ops.threshold_decode_sum(message[tf.newaxis], locals_, [64, 5]), locals_

    decoded, still_read = decode_beside_a_reader(*gradients)
    for gradient, read_gradient in zip(gradients, still_read, strict=True):
        np.testing.assert_array_equal(read_gradient, gradient)
    assert not np.array_equal(decoded[0], gradients[0])


def test_the_same_tensor_may_be_two_gradients(rng, gradients):
    @tf.function
    def exchange(gradient, residual):
        local = gradient * 1.0
        row = ops.threshold_encode([local, local], residual, 0.1, 1.0, 128, [64, 64])
        return ops.threshold_decode_sum(row[tf.newaxis], [local, local], [64, 64])

    first, second = exchange(gradients[0], variable_of(np.zeros(128)))
    np.testing.assert_array_equal(first, second)
    expected, _, _ = oracle.encode(flat(gradients[:1]), 0.1)
    np.testing.assert_array_equal(
        np.ravel(first), oracle.decode_sum([expected], [1.0], 64, np.float32)
    )


@pytest.mark.parametrize("still_needed", [False, True])
def test_result_takes_the_memory_of_gradients_that_nobody_needs(still_needed):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        values = tf.compat.v1.placeholder(tf.float32, [1000])
        local = tf.math.sqrt(values, name="local")
        (decoded,) = ops.threshold_decode_sum(write([3])[np.newaxis, np.newaxis], [local], [1000])
        fetched = [tf.math.sqrt(decoded)]
        if still_needed:
            with tf.control_dependencies([decoded]):
                fetched.append(tf.math.sqrt(local))
        trace = tf.compat.v1.RunMetadata()
        options = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
        session.run(fetched, {values: np.ones(1000)}, options, trace)
    address_of = {
        node.node_name: output.tensor_description.allocation_description.ptr
        for node in trace.step_stats.dev_stats[0].node_stats
        for output in node.output
    }
    assert (address_of["local"] == address_of[decoded.op.name]) != still_needed
