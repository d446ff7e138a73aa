"""Memory that the compiled ops write, and memory that they must leave alone."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.gradients import gradients_of
from tf_onebit import ops
from tf_onebit._layout import Layout

LAYOUT = Layout([(64, 32, 32), (5, 0, 0)], world_size=1)


@pytest.fixture
def gradients(rng):
    return gradients_of(rng, [(2, 32), (5,)])


@pytest.fixture
def residual(rng):
    return tf.Variable(rng.normal(size=64).astype(np.float32))


def update_as_worker(gradients, residual):
    ops.one_bit_encode(gradients, residual, LAYOUT)


def update_as_worker_with_scales(gradients, residual):
    ops.one_bit_encode(gradients, residual, LAYOUT, value_scales=tf.fill([64], 0.5))


def learn_scales(gradients, residual):
    ops.one_bit_learn_scales(gradients, residual, LAYOUT)


def update_as_owner(gradients, residual):
    ops.one_bit_encode_shard(tf.reshape(gradients[0], [64]), residual, LAYOUT, rank=0)


def update_as_aggregating_owner(gradients, residual):
    messages, _ = ops.one_bit_encode(gradients, tf.Variable(tf.zeros([64])), LAYOUT)
    ops.one_bit_aggregate(messages, residual, LAYOUT, rank=0)


every_update = pytest.mark.parametrize(
    "update",
    [
        *(update_as_worker, update_as_worker_with_scales, learn_scales),
        *(update_as_owner, update_as_aggregating_owner),
    ],
)


@every_update
def test_residual_is_updated(gradients, residual, update):
    before = residual.numpy().copy()
    update(gradients, residual)
    assert (residual.numpy() != before).all()


@every_update
def test_a_residual_that_somebody_still_reads_keeps_its_values_for_them(
    gradients, residual, update
):
    still_read = residual.read_value()
    before = still_read.numpy().copy()
    update(gradients, residual)
    np.testing.assert_array_equal(still_read, before)
    assert (residual.numpy() != before).all()


@every_update
def test_gradients_are_not_changed(gradients, residual, update):
    before = [gradient.numpy().copy() for gradient in gradients]
    update(gradients, residual)
    for gradient, values in zip(gradients, before, strict=True):
        np.testing.assert_array_equal(gradient, values)


def test_residual_is_not_changed_without_error_feedback(gradients, residual):
    before = residual.numpy().copy()
    ops.one_bit_encode(gradients, residual, LAYOUT, error_feedback=False)
    np.testing.assert_array_equal(residual, before)


def test_decode_leaves_gradients_that_are_still_read(gradients, residual):
    messages, _ = ops.one_bit_encode(gradients, residual, LAYOUT)
    message, _, plain = ops.one_bit_aggregate(messages, residual, LAYOUT, rank=0)

    @tf.function
    def decode_beside_a_reader(first, second):
        locals_ = [first * 1.0, second * 1.0]
        exchanged = ops.one_bit_decode(message, plain, locals_, LAYOUT)
        return exchanged, locals_

    exchanged, still_read = decode_beside_a_reader(*gradients)
    for gradient, read in zip(gradients, still_read, strict=True):
        np.testing.assert_array_equal(read, gradient)
    assert not np.array_equal(exchanged[0], gradients[0])


def test_the_same_tensor_may_be_two_gradients(rng):
    layout = Layout([(64, 32, 32), (64, 32, 32)], world_size=1)
    (gradient,) = gradients_of(rng, [(2, 32)])
    residuals = [tf.Variable(tf.zeros([128])) for _ in range(2)]

    @tf.function
    def exchange(gradient):
        local = gradient * 1.0
        messages, _ = ops.one_bit_encode([local, local], residuals[0], layout)
        message, _, plain = ops.one_bit_aggregate(messages, residuals[1], layout, rank=0)
        return ops.one_bit_decode(message, plain, [local, local], layout)

    first, second = exchange(gradient)
    np.testing.assert_array_equal(first, second)
    # Values with only two levels are quantized without an error.
    np.testing.assert_allclose(np.sign(first), np.where(gradient >= 0, 1, -1))
