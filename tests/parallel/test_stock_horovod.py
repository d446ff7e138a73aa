"""`Compression.onebit` and `Compression.threshold` inside Horovod's own functions."""

import itertools

import horovod.tensorflow as stock
import numpy as np
import pytest
import tensorflow as tf

from tests.parallel.test_tape import coefficients, linear, lockstep_means
from tests.support.nightly import nightly, nightly_rows
from tests.support.ranks import assert_same_bits_on_all_ranks, rank
from tf_onebit import OneBit, Threshold
from tf_onebit.horovod import Compression

SHAPE = (64, 32)
STEPS = 4
COMPRESSIONS = {
    "onebit": (Compression.onebit, OneBit()),
    "threshold": (Compression.threshold, Threshold()),
}
# Options, and what the mean is multiplied by.
SCALINGS = {
    "sum": ({"op": stock.Sum}, lambda world_size: world_size),
    "average": ({"op": stock.Average}, lambda world_size: 1),
    "average_prescale": ({"op": stock.Average, "prescale_factor": 0.5}, lambda world_size: 0.5),
    "sum_prescale_postscale": (
        {"op": stock.Sum, "prescale_factor": 0.5, "postscale_factor": 3.0},
        lambda world_size: 1.5 * world_size,
    ),
}
USUAL = [("onebit", "sum_prescale_postscale"), ("threshold", "average")]
OTHERS = [case for case in itertools.product(COMPRESSIONS, SCALINGS) if case not in USUAL]


@pytest.mark.workers(3)
@pytest.mark.parametrize("name, scaling", [*USUAL, *nightly_rows(*OTHERS)])
def test_allreduce_scales_as_it_was_asked_to(name, scaling, world_size, request):
    (compression, exchange), (options, factor) = COMPRESSIONS[name], SCALINGS[scaling]

    @tf.function
    def total(tensor):
        return stock.allreduce(tensor, compression=compression, **options)

    # Residuals belong to the name of the function.
    total = tf.function(_renamed(total.python_function, request))
    for step, (mean,) in enumerate(lockstep_means(exchange, world_size, STEPS, [SHAPE])):
        received = total(*coefficients(step, rank(), [SHAPE]))
        np.testing.assert_allclose(received, factor(world_size) * mean, rtol=1e-6)
        assert_same_bits_on_all_ranks([received])


def _renamed(function, request):
    function.__name__ = "".join(c if c.isalnum() else "_" for c in request.node.name)
    return function


@pytest.mark.workers(2)
def test_residuals_outlive_a_retrace(world_size):
    traces = []

    @tf.function
    def retraced(tensor, trace):
        traces.append(trace)
        return stock.allreduce(tensor, op=stock.Average, compression=Compression.onebit)

    for step, (mean,) in enumerate(lockstep_means(OneBit(), world_size, STEPS, [SHAPE])):
        (tensor,) = coefficients(step, rank(), [SHAPE])
        np.testing.assert_array_equal(retraced(tensor, trace=step // 2), mean)
    assert set(traces) == {0, 1}


@pytest.mark.workers(2)
def test_equal_tensors_of_a_function_have_residuals_of_their_own(world_size):
    @tf.function
    def two_tensors(tensor):
        return [
            stock.allreduce(scale * tensor, op=stock.Average, compression=Compression.onebit)
            for scale in (1.0, -2.0)
        ]

    for step, (mean,) in enumerate(lockstep_means(OneBit(), world_size, STEPS, [SHAPE])):
        one, minus_two = two_tensors(*coefficients(step, rank(), [SHAPE]))
        np.testing.assert_array_equal(one, mean)
        assert not np.array_equal(minus_two, one)


@pytest.mark.workers(2)
def test_residuals_in_a_loop_and_in_a_branch(world_size):
    tensors = tf.stack([coefficients(step, rank(), [SHAPE])[0] for step in range(STEPS)])

    @tf.function
    def looped(tensors):
        means = tf.TensorArray(tf.float32, STEPS)
        for step in tf.range(STEPS):
            mean = stock.allreduce(tensors[step], op=stock.Average, compression=Compression.onebit)
            means = means.write(step, mean)
        return means.stack()

    expected = [mean for (mean,) in lockstep_means(OneBit(), world_size, STEPS, [SHAPE])]
    np.testing.assert_array_equal(looped(tensors), expected)


@pytest.mark.workers(2)
@pytest.mark.parametrize("eager", [False, *nightly(True)], ids=["graph", "eager"])
def test_stock_gradient_tape(eager, world_size):
    shapes = [(64, 32), (32,), (32, 40)]
    variables = [tf.Variable(tf.zeros(shape)) for shape in shapes]

    def gradients_in_stock_tape(*coefficients):
        with tf.GradientTape() as tape:
            loss = linear(variables, coefficients)
        tape = stock.DistributedGradientTape(tape, compression=Compression.onebit)
        return tape.gradient(loss, variables)

    step_function = gradients_in_stock_tape if eager else tf.function(gradients_in_stock_tape)
    # Each tensor is exchanged by itself, so each is compared by itself.
    expected = [lockstep_means(OneBit(), world_size, STEPS, [shape]) for shape in shapes]
    for step in range(STEPS):
        received = step_function(*coefficients(step, rank(), shapes))
        assert_same_bits_on_all_ranks(received)
        np.testing.assert_allclose(received[1], _mean(step, 1, shapes, world_size), rtol=1e-6)
        (mean,) = next(expected[0])
        np.testing.assert_array_equal(received[0], mean)


def _mean(step, index, shapes, world_size):
    return np.mean([coefficients(step, k, shapes)[index] for k in range(world_size)], axis=0)


@pytest.mark.workers(2)
def test_eager_use_is_refused(world_size):
    with pytest.raises(RuntimeError, match="Compression.onebit works only inside a tf.function"):
        stock.allreduce(tf.ones(SHAPE), compression=Compression.onebit)


@pytest.mark.workers(2)
def test_small_tensors_and_whole_numbers_are_summed_exactly(world_size):
    @tf.function
    def exact(small, vector, integers):
        return [
            stock.allreduce(tensor, op=stock.Sum, compression=Compression.onebit)
            for tensor in (small, vector, integers)
        ]

    tensors = [np.arange(6.0).reshape(2, 3), np.arange(4096.0), np.arange(2048).reshape(64, 32)]
    received = exact(*((rank() + 1) * tf.constant(tensor) for tensor in tensors))
    factor = world_size * (world_size + 1) // 2
    for tensor, other in zip(tensors, received, strict=True):
        np.testing.assert_array_equal(factor * tensor, other)


@pytest.mark.workers(2)
def test_not_finite_tensor_is_an_error_on_all_ranks(world_size):
    @tf.function
    def poisoned(tensor):
        return stock.allreduce(tensor, compression=Compression.onebit)

    with pytest.raises(tf.errors.InvalidArgumentError, match="Rank 1 met an infinity or NaN"):
        poisoned(tf.fill(SHAPE, np.inf if rank() == 1 else 1.0))
