"""The ops of transforms against their equations, in every size, and the memory that they write."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.gradients import gradient_values
from tests.unit.ops.test_ops_errors import refuses, variable
from tf_onebit import ops

# Sizes around words, vectors and blocks, and of several stripes.
SIZES = [0, 1, 3, 31, 32, 33, 100, 4096, 4097, 600_000]
every_size = pytest.mark.parametrize("size", SIZES)


def float32(rng, size):
    return gradient_values(rng, (size,)).astype(np.float32)


def squares(rng, size):
    return np.square(float32(rng, size))


@every_size
@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_accumulate_is_its_equation(rng, size, share):
    gradient, before = float32(rng, size), squares(rng, size)
    average = tf.Variable(before)
    run_sizes = [size // 3, 0, size - size // 3]
    sums = ops.adagrad_accumulate(gradient, average, share, run_sizes)
    expected = before + share * (np.float64(gradient) ** 2 - before)
    # The old and the new square may differ in size.
    errors = np.abs(average.numpy() - expected)
    assert (errors <= 1e-6 * (before + np.square(gradient))).all()
    deviations = np.split(np.sqrt(expected), [size // 3])
    assert sums.dtype == tf.float64
    expected_sums = [deviations[0].sum(), 0, deviations[1].sum()]
    np.testing.assert_allclose(sums, expected_sums, rtol=1e-5)


@every_size
def test_normalize_is_its_equation(rng, size):
    gradient, average = float32(rng, size), squares(rng, size)
    run_sizes, means = [size // 3, 0, size - size // 3], [0.5, 7.0, 0.0]
    normalized = ops.adagrad_normalize(gradient, tf.Variable(average), means, run_sizes, 0.25)
    cut = size // 3
    divisor = np.maximum(np.sqrt(np.float64(average[:cut])) / 0.5, 0.25)
    np.testing.assert_allclose(normalized[:cut], gradient[:cut] / divisor, rtol=1e-6)
    np.testing.assert_array_equal(normalized[cut:], gradient[cut:])  # there is no mean


@every_size
@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_is_its_equation(rng, size, nesterov):
    gradient, before = float32(rng, size), float32(rng, size)
    velocity = tf.Variable(before)
    moved = ops.momentum(gradient, velocity, 0.75, nesterov, -0.5)
    expected = 0.75 * np.float64(before) - 0.5 * gradient
    np.testing.assert_allclose(velocity, expected, rtol=1e-6, atol=1e-6)
    if nesterov:
        expected = 0.75 * expected - 0.5 * gradient
    np.testing.assert_allclose(moved, expected, rtol=1e-6, atol=1e-6)


@every_size
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_adam_is_its_equation(rng, size, noise):
    gradient, before, before_square = float32(rng, size), float32(rng, size), squares(rng, size)
    average, square = tf.Variable(before), tf.Variable(before_square)
    update = ops.adam(gradient, average, square, -0.5, 0.75, 0.875, 0.01, noise, 1.5)
    expected = np.float64(before) + 0.25 * (gradient - np.float64(before))
    squared, deviation = np.float64(gradient) ** 2, gradient - 1.5 * np.float64(before)
    expected_square = before_square + 0.125 * (squared - noise * deviation**2 - before_square)
    if noise:
        least = 0.125 * (1 - 0.75**2 / 0.875) / 0.25**2
        assert size < 100 or (expected_square < least * expected**2).any()
        expected_square = np.maximum(expected_square, least * expected**2)
    np.testing.assert_allclose(average, expected, rtol=1e-6, atol=1e-6)
    # In the sum of terms that cancel, each is rounded.
    terms = before_square + squared + noise * deviation**2
    assert (np.abs(square - expected_square) <= 1e-6 * terms).all()
    quotient = -0.5 * np.float64(average) / (np.sqrt(np.float64(square)) + 0.01)
    np.testing.assert_allclose(update, quotient, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("position", [0, 31, 32, 99])
def test_what_is_not_finite_does_not_enter_the_state(rng, value, position):
    gradient, before = float32(rng, 100), squares(rng, 100)
    before[position] = 3.0
    others = np.arange(100) != position
    clean, average = tf.Variable(before), tf.Variable(before)
    ops.adagrad_accumulate(gradient, clean, 0.5, [100])
    gradient[position] = value
    (total,) = ops.adagrad_accumulate(gradient, average, 0.5, [100])
    np.testing.assert_array_equal(average.numpy()[others], clean.numpy()[others])
    assert average.numpy()[position] == 3.0
    np.testing.assert_allclose(total, np.sqrt(average).sum(), rtol=1e-5)

    velocity = tf.Variable(np.full([100], 2e38, np.float32))
    moved = ops.momentum(np.abs(gradient), velocity, 0.99)
    assert np.isfinite(velocity).all() and velocity.numpy()[position] == np.float32(2e38)
    assert not np.isfinite(moved.numpy()[position])
    normalized = ops.adagrad_normalize(gradient, average, [1e-3], [100], 1e-3)
    assert np.isfinite(normalized.numpy()[others]).all()

    average, square = tf.Variable(before), tf.Variable(before)
    update = ops.adam(gradient, average, square, 1.0).numpy()
    assert np.isnan(update[position]) and np.isfinite(update[others]).all()
    assert average.numpy()[position] == square.numpy()[position] == 3.0
    assert (average.numpy()[others] != before[others]).any()
    assert np.isfinite(square).all()


def run_accumulate(gradient, state):
    return ops.adagrad_accumulate(gradient, state, 0.5, [100])


def run_normalize(gradient, state):
    return ops.adagrad_normalize(gradient, state, [1.0], [100], 0.5)


def run_momentum(gradient, state):
    return ops.momentum(gradient, state, 0.5)


AVERAGE = tf.Variable(tf.zeros([100]))  # nobody reads it, and a graph cannot make one


def run_adam(gradient, state):
    return ops.adam(gradient, AVERAGE, state, 0.5)


UPDATES = [run_accumulate, run_momentum, run_adam]
RUNS = [*UPDATES, run_normalize]
every_run = pytest.mark.parametrize("run", RUNS)
every_update = pytest.mark.parametrize("run", UPDATES)


@every_update
def test_state_that_somebody_still_reads_keeps_its_values_for_them(rng, run):
    state = tf.Variable(squares(rng, 100))
    still_read = state.read_value()
    before = still_read.numpy().copy()
    run(float32(rng, 100), state)
    np.testing.assert_array_equal(still_read, before)
    assert (state.numpy() != before).any()


@every_run
def test_a_gradient_that_is_still_read_is_not_changed(rng, run):
    state, values = tf.Variable(squares(rng, 100)), float32(rng, 100)

    @tf.function
    def beside_a_reader(given):
        gradient = given * 1.0
        return run(gradient, state), gradient

    _, still_read = beside_a_reader(tf.constant(values))
    np.testing.assert_array_equal(still_read, values)


@pytest.mark.parametrize("run", [run_normalize, run_momentum])
def test_shapes_are_known_in_a_graph(run):
    state = variable(100)

    @tf.function
    def shape_of(gradient):
        assert run(gradient, state).shape == [10, 10]
        assert ops.adagrad_accumulate(gradient, state, 0.5, [50, 50]).shape == [2]

    shape_of.get_concrete_function(tf.TensorSpec([10, 10]))


@every_run
@pytest.mark.parametrize("size", [0, 99, 101])
def test_state_of_another_size_is_refused(run, size):
    with refuses(f"(average|velocity|variable) must have 100 values.*Received: {size} values"):
        run(tf.zeros([100]), variable(size))


@every_run
def test_state_of_another_type_is_refused(run):
    message = "(average|velocity|variable) must be a float32 variable. Received: dtype=double"
    with refuses(message):
        run(tf.zeros([100]), variable(100, tf.float64))


@every_run
@pytest.mark.parametrize("dtype", [tf.float64, tf.float16])
def test_gradients_of_other_types_are_refused(run, dtype):
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match="float"):
        run(tf.zeros([100], dtype), variable(100))


@pytest.mark.parametrize("run", [run_accumulate, run_normalize])
def test_runs_that_are_not_those_of_the_gradient_are_refused(run):
    with refuses("gradient must have 100 values, as the layout says. Received: 99 values"):
        run(tf.zeros([99]), variable(99))


def test_a_negative_run_is_refused():
    with refuses("run_sizes must be numbers of values. Received: -1"):
        ops.adagrad_accumulate(tf.zeros([1]), variable(1), 0.5, [2, -1])


@pytest.mark.parametrize("share", [-0.1, 1.1, np.nan, np.inf])
def test_a_share_that_is_none_is_refused(share):
    state = variable(1)
    with refuses(f"share must be from 0 to 1. Received: share=-?{abs(share)}"):
        ops.adagrad_accumulate(tf.ones([1]), state, share, [1])
    assert state.numpy().tolist() == [0.0]


def test_several_shares_are_refused():
    with refuses(r"share must be a scalar. Received: shape=\[2\]"):
        ops.adagrad_accumulate(tf.ones([1]), variable(1), [0.5, 0.5], [1])


@pytest.mark.parametrize("mean", [-1.0, np.nan, np.inf])
def test_a_mean_that_is_none_is_refused(mean):
    with refuses(r"means must be finite and at least 0. Received: means\[1\]=-?(1|nan|inf)"):
        ops.adagrad_normalize(tf.ones([2]), variable(2), [1.0, mean], [1, 1], 0.5)


def test_means_must_be_as_many_as_runs():
    with refuses(r"means must have one number for each of 2 runs. Received: shape=\[1\]"):
        ops.adagrad_normalize(tf.ones([2]), variable(2), [1.0], [1, 1], 0.5)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, np.nan, np.inf])
def test_an_epsilon_that_is_not_positive_is_refused(epsilon):
    with refuses("epsilon must be positive. Received: epsilon="):
        ops.adagrad_normalize(tf.ones([1]), variable(1), [1.0], [1], epsilon)


@pytest.mark.parametrize("momentum", [-0.1, 1.0, np.nan])
def test_a_momentum_that_is_none_is_refused(momentum):
    with refuses("momentum must be at least 0 and less than 1. Received: momentum="):
        ops.momentum(tf.ones([1]), variable(1), momentum)


@pytest.mark.parametrize(
    "settings, told",
    [
        ({"beta_1": 1.5}, "beta_1 must be from 0 to 1. Received: 1 - beta_1=-0.5"),
        ({"beta_2": -0.5}, "beta_2 must be from 0 to 1. Received: 1 - beta_2=1.5"),
        ({"epsilon": -1.0}, "epsilon must be at least 0. Received: epsilon=-1"),
        ({"epsilon": np.nan}, "epsilon must be at least 0. Received: epsilon=nan"),
    ],
)
def test_settings_of_adam_that_are_none_are_refused(settings, told):
    with refuses(told):
        ops.adam(tf.ones([1]), variable(1), variable(1), 1.0, **settings)


def test_one_variable_cannot_be_both_averages():
    state = variable(1)
    with refuses("All variables must be different ones"):
        ops.adam(tf.ones([1]), state, state, 1.0)


def test_several_factors_are_refused():
    with refuses(r"factor must be a scalar. Received: shape=\[2\]"):
        ops.momentum(tf.ones([1]), variable(1), 0.5, factor=[1.0, 2.0])
    with refuses(r"factor must be a scalar. Received: shape=\[2\]"):
        ops.adam(tf.ones([1]), variable(1), variable(1), [1.0, 2.0])
    with refuses(r"noise must be a scalar. Received: shape=\[2\]"):
        ops.adam(tf.ones([1]), variable(1), variable(1), 1.0, noise=[0.5, 0.5])
    with refuses(r"unbias must be a scalar. Received: shape=\[0\]"):
        ops.adam(tf.ones([1]), variable(1), variable(1), 1.0, unbias=tf.zeros([0]))
