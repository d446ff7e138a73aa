"""Update rules of Keras optimizers as compiled ops: the same bits as Keras, and nobody else's."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_onebit
from tf_onebit._training.compiled_rules import compiled_update
from tf_onebit._training.local_updates import LocalUpdates

SHAPES = [(37, 53), (53,), (3, 3, 7, 11)]


class Named(keras.optimizers.Adam):
    """A subclass that leaves the update as it is."""


class Halved(keras.optimizers.Adam):
    """A subclass with an update of its own."""

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate / 2)


COMPILED = {
    "momentum": (keras.optimizers.SGD, {"momentum": 0.9}),
    "nesterov": (keras.optimizers.SGD, {"momentum": 0.5, "nesterov": True}),
    "adam": (keras.optimizers.Adam, {"beta_1": 0.8, "beta_2": 0.99, "epsilon": 1e-3}),
    "adamw": (keras.optimizers.AdamW, {"weight_decay": 0.1}),
    "subclass": (Named, {}),
    "our_adam": (tf_onebit.optimizers.Adam, {}),
    "our_adamw": (tf_onebit.optimizers.AdamW, {}),
}
OTHERS = {
    "another_update": (Halved, {}),
    "amsgrad": (keras.optimizers.Adam, {"amsgrad": True}),
    "endless_momentum": (keras.optimizers.SGD, {"momentum": 1.0}),
    "one_in_float32": (keras.optimizers.SGD, {"momentum": 1 - 1e-9}),
    "nadam": (keras.optimizers.Nadam, {}),
    "our_nadam": (tf_onebit.optimizers.Nadam, {}),
    "rectified_adam": (tf_onebit.optimizers.RectifiedAdam, {}),
    "rmsprop": (keras.optimizers.RMSprop, {"momentum": 0.9}),
    "lion": (keras.optimizers.Lion, {}),
}


def local(cls):
    """Returns a class of optimizers that compute updates and do not make them."""
    return type(cls.__name__, (LocalUpdates, cls), {})


def built(cls, settings, initial, learning_rate=0.0137):
    variables = [keras.Variable(array) for array in initial]
    optimizer = cls(learning_rate, **settings)
    optimizer.build(variables)
    return optimizer, variables


def step_locally(optimizer, variables, gradients):
    """Makes the step that Keras makes, by local updates."""
    optimizer._apply_weight_decay(variables)
    updates = optimizer.local_updates(gradients, variables, optimizer.learning_rate)
    for variable, update in zip(variables, updates, strict=True):
        variable.assign(variable + update)
    optimizer._iterations.assign_add(1)


def op_types_of(function, *args):
    graph = tf.function(function).get_concrete_function(*args).graph
    return {operation.type for operation in graph.get_operations()}


@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("name", COMPILED)
def test_weights_and_moments_have_the_bits_of_keras(rng, name, in_graph):
    initial = [rng.normal(size=shape).astype(np.float32) for shape in SHAPES]
    cls, settings = COMPILED[name]
    plain, plain_variables = built(cls, settings, initial)
    optimizer, variables = built(local(cls), settings, initial)

    def by_keras(gradients):
        plain.apply(gradients, plain_variables)

    def by_us(gradients):
        step_locally(optimizer, variables, gradients)

    if in_graph:
        by_keras, by_us = tf.function(by_keras), tf.function(by_us)
    for scale in (1.0, 1e-3, 10.0, 1e-6):
        gradients = [tf.constant(scale * rng.normal(size=shape), tf.float32) for shape in SHAPES]
        by_keras(gradients)
        by_us(gradients)
    plainly, locally = plain_variables + plain.variables, variables + optimizer.variables
    for expected, variable in zip(plainly, locally, strict=True):
        np.testing.assert_array_equal(variable, expected)


@pytest.mark.parametrize("signal", [0.0, 1.0])
@pytest.mark.parametrize("workers", [1, 8])
def test_squares_are_those_of_the_mean_of_the_workers(rng, workers, signal):
    """With noise of variance 1 on each worker, and a signal that all of them share."""
    optimizer, variables = built(
        local(keras.optimizers.Adam), {"beta_2": 0.99}, [np.zeros(20_000, np.float32)]
    )
    missing = tf.constant(1 - 1 / workers, tf.float32)

    @tf.function
    def step(gradient):
        optimizer.local_updates([gradient], variables, 0.1, missing)
        optimizer._iterations.assign_add(1)

    for _ in range(400):
        step(tf.constant(signal + rng.normal(size=20_000), tf.float32))
    squares = optimizer._velocities[0].numpy() / (1 - 0.99**400)
    assert squares.mean() == pytest.approx(signal**2 + 1 / workers, rel=0.03)
    assert squares.min() > 0


@pytest.mark.parametrize("name", COMPILED)
def test_one_op_moves_the_moments_and_computes_the_update(name):
    cls, settings = COMPILED[name]
    optimizer, (variable,) = built(cls, settings, [np.ones(5, np.float32)])

    def update(gradient):
        return compiled_update(optimizer, gradient, variable.value, optimizer.learning_rate)

    types = op_types_of(update, tf.ones([5]))
    assert types & {"TfOnebit>Momentum", "TfOnebit>Adam"}
    assert "AssignVariableOp" not in types


@pytest.mark.parametrize("name", OTHERS)
def test_keras_computes_the_updates_of_other_optimizers(rng, name):
    initial = [rng.normal(size=shape).astype(np.float32) for shape in SHAPES]
    cls, settings = OTHERS[name]
    plain, plain_variables = built(cls, settings, initial)
    optimizer, variables = built(local(cls), settings, initial)
    gradients = [tf.constant(rng.normal(size=shape), tf.float32) for shape in SHAPES]
    assert compiled_update(optimizer, gradients[0], variables[0].value, 0.1) is None
    plain.apply(gradients, plain_variables)
    step_locally(optimizer, variables, gradients)
    for expected, variable in zip(plain_variables, variables, strict=True):
        np.testing.assert_allclose(variable, expected, rtol=1e-6)


def test_keras_computes_updates_with_a_decay_that_changes():
    optimizer, (variable,) = built(keras.optimizers.Adam, {}, [np.ones(5, np.float32)])
    optimizer.beta_1 = tf.Variable(0.9)

    def update(gradient):
        assert compiled_update(optimizer, gradient, variable.value, 0.1) is None
        optimizer.apply([gradient], [variable])

    tf.function(update)(tf.ones([5]))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_keras_computes_the_updates_of_other_types(dtype):
    variable = keras.Variable(np.ones(5), dtype=dtype)
    optimizer = keras.optimizers.Adam(0.1)
    optimizer.build([variable])
    gradient = tf.ones([5], dtype)
    assert compiled_update(optimizer, gradient, variable.value, optimizer.learning_rate) is None


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30], ids=["nan", "inf", "infinite_square"])
@pytest.mark.parametrize("name", ["momentum", "nesterov", "adam"])
def test_what_is_not_finite_ends_in_the_update_and_not_in_the_moments(name, value):
    cls, settings = COMPILED[name]
    optimizer, (variable,) = built(cls, settings, [np.ones(5, np.float32)])
    gradient = np.ones(5, np.float32)
    gradient[2] = value
    update = compiled_update(optimizer, gradient, variable.value, optimizer.learning_rate).numpy()
    assert np.isfinite(update[[0, 1, 3, 4]]).all()
    assert all(np.isfinite(slot).all() for slot in optimizer.variables)
    if name == "adam" or not np.isfinite(value):
        assert not np.isfinite(update[2])


def test_moments_that_were_moved_count_their_own_steps():
    optimizer, (variable,) = built(tf_onebit.optimizers.Adam, {}, [np.ones(3, np.float32)])
    optimizer.moment_steps = 2.5
    update = compiled_update(optimizer, tf.ones([3]), variable.value, optimizer.learning_rate)
    corrections = np.sqrt(1 - 0.999**3.5) / (1 - 0.9**3.5)
    expected = -0.0137 * corrections * 0.1 / (np.sqrt(0.001) + 1e-7)
    np.testing.assert_allclose(update, np.full(3, expected), rtol=1e-4)
