"""The arithmetic of block momentum: the paper's own figures, and the compiled ops."""

import numpy as np
import pytest
import tensorflow as tf

from tf_onebit import ops
from tf_onebit._bmuf.equations import Block, BlockFilter, corrected_moment, moment_factors


def after(blocks, block_filter, steps):
    equivalent_steps = ahead = 0.0
    for _ in range(blocks):
        equivalent_steps, ahead = block_filter.steps(steps, equivalent_steps)
    return equivalent_steps, ahead


@pytest.mark.parametrize("workers", [2, 8, 64])
def test_momentum_stands_for_the_minibatches_of_all_workers(workers):
    equivalent_steps, ahead = after(50 * workers, BlockFilter(1 - 1 / workers), steps=16)
    assert equivalent_steps == pytest.approx(16 * workers)
    assert 16 + ahead == pytest.approx(16 * workers)


def test_classical_momentum_is_a_block_behind():
    equivalent_steps, _ = after(2, BlockFilter(0.5, nesterov=False), steps=8)
    _, ahead = after(3, BlockFilter(0.5, nesterov=False), steps=8)
    assert ahead == 0.5 * equivalent_steps


def test_second_moments_of_32_workers_are_moved_by_28_times_what_a_block_changed():
    _, ahead = after(2000, BlockFilter(1 - 1 / 32), steps=8)
    factor, floor = moment_factors(Block((8,) * 32), ahead, 0.999)
    assert 1 + factor == pytest.approx(28, abs=0.5)
    assert floor == pytest.approx(0.999 ** (8 * 32), rel=1e-6)


def test_a_moment_that_no_gradient_changes_decays_as_if_steps_had_gone_on():
    block, ahead, beta = Block((8, 8)), 12.5, 0.9
    factor, floor = moment_factors(block, ahead, beta)
    begin = 3.0
    assert corrected_moment(begin * beta**8, begin, factor) == pytest.approx(begin * beta**20.5)
    assert floor == pytest.approx(beta**20.5)


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_moving_averages_of_no_or_endless_memory(beta):
    assert moment_factors(Block((4, 4)), 10.0, beta) == (0.0, beta)


def test_weights_of_workers_go_by_their_steps():
    block = Block((8, 4, 0))
    assert block.weights == pytest.approx((2 / 3, 1 / 3, 0))
    assert block.mean_steps == pytest.approx(20 / 3)
    assert block.decay(0.5) == pytest.approx(2 / 3 * 0.5**8 + 1 / 3 * 0.5**4)
    assert Block((8, 4, 0), leader=1).weights == (0, 1, 0)


@pytest.mark.parametrize("as_array", [np.asarray, tf.constant], ids=["numpy", "tensorflow"])
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("rate", [1.0, 0.9])
def test_compiled_update_is_this_arithmetic_to_the_bit(as_array, nesterov, rate):
    rng = np.random.default_rng(0)
    mean, model, delta = rng.standard_normal((3, 1000))
    block_filter = BlockFilter(0.75, rate, nesterov)
    begin = model + 0.75 * delta if nesterov else model
    expected = block_filter.model(*map(as_array, (mean, begin, delta)))
    weights, kept, momentum = (tf.Variable(array) for array in (begin, model, delta))
    ops.block_update(
        [tf.constant(mean)],
        [weights],
        [kept],
        [momentum],
        block_filter.block_momentum,
        block_filter.block_learning_rate,
        0.75 if nesterov else 0.0,
        nesterov=nesterov,
        relative=False,
    )
    for variable, array in zip((kept, weights, momentum), expected, strict=True):
        np.testing.assert_array_equal(variable, array)


def test_compiled_moments_are_this_arithmetic_to_the_bit():
    mean, begin = np.random.default_rng(0).standard_normal((2, 1000))
    variable, kept = tf.Variable(begin), tf.Variable(begin)
    ops.moments_update([tf.constant(mean)], [variable], [kept], 2.5, -1.0, relative=False)
    np.testing.assert_array_equal(variable, corrected_moment(mean, begin, 2.5))
