"""A backup is compared with the model and the optimizers that continue from it."""

import json

import keras
import numpy as np
import pytest

from tf_onebit.callbacks.model_description import (
    describe,
    describe_optimizers,
    require_same_model,
    require_same_optimizers,
    resumed_settings,
)

INPUTS = 8


def sequential(hidden=4, activation="relu", rate=0.1, dtype=None, last=keras.layers.Dense):
    layers = [
        keras.layers.Dense(hidden, activation=activation, dtype=dtype),
        keras.layers.Dropout(rate),
        last(2),
    ]
    return keras.Sequential([keras.Input((INPUTS,)), *layers])


def functional(first=keras.ops.sin, residual=True):
    x = keras.Input((INPUTS,))
    y = keras.layers.Dense(INPUTS, activation="relu")(keras.ops.relu(first(x)))
    return keras.Model(x, keras.layers.Dense(1)(x + y if residual else y + y))


class WithoutConfig(keras.layers.Layer):
    def __init__(self, values, **arguments):
        super().__init__(**arguments)
        self.values = values

    def call(self, x):
        return x


class Subclassed(keras.Model):
    def __init__(self, block):
        super().__init__()
        self.block, self.out = block, keras.layers.Dense(3)

    def call(self, x):
        return self.out(self.block(x))


def subclassed(units=5):
    model = Subclassed(keras.Sequential([keras.layers.Dense(units, kernel_initializer="zeros")]))
    model(np.zeros([1, INPUTS]))
    return model


def odd():
    """Returns a model with many parts that cannot be described."""
    layers = [
        WithoutConfig(object()),
        keras.layers.Lambda(lambda x: x + 1),
        keras.layers.Dense(2, activation=lambda x: x),
        keras.layers.RandomContrast(0.1),
        keras.layers.Normalization(mean=np.zeros(2), variance=np.ones(2)),
    ]
    return keras.Sequential([keras.Input((INPUTS,)), *layers])


def described(value):
    """Returns a description as it comes back from a file."""
    return json.loads(json.dumps(value))


@pytest.mark.parametrize("make", [sequential, functional, subclassed, odd])
def test_the_same_program_makes_the_same_description(make):
    keras.utils.clear_session()
    first = described(describe(make()))
    sequential(), functional(keras.ops.relu)  # Keras counts on in the names of layers
    second = describe(make())
    require_same_model(first, second)
    names = [[layer["layer"] for layer in one] for one in (first, second)]
    assert names[0] != names[1]


@pytest.mark.parametrize(
    "make, changes, told",
    [
        (
            sequential,
            {"activation": "tanh"},
            "'dense', a Dense, has activation = relu, .* has tanh",
        ),
        (sequential, {"hidden": 5}, "a Dense, has units = 4, and the model's 'dense.*' has 5"),
        (sequential, {"rate": 0.2}, "a Dropout, has rate = 0.1, .* has 0.2"),
        (sequential, {"dtype": "float64"}, "a Dense, has dtype.name = float32, .* has float64"),
        (
            sequential,
            {"last": keras.layers.EinsumDense},
            "is a Dense, and the model's .* an? EinsumDense",
        ),
        (functional, {"residual": False}, "a Functional, has layers.*inbound_nodes"),
        (functional, {"first": keras.ops.cos}, "a Functional, has layers.1 = Sin, .* has Cos"),
        (subclassed, {"units": 6}, "a Dense, has units = 5, .* has 6"),
    ],
)
def test_another_architecture_is_named(make, changes, told):
    keras.utils.clear_session()
    saved = described(describe(make()))
    if changes.get("last"):
        changes = {"last": lambda units: keras.layers.EinsumDense("ab,bc->ac", units)}
    with pytest.raises(ValueError, match=told):
        require_same_model(saved, describe(make(**changes)))


def test_another_number_of_layers_is_named():
    saved = described(describe(sequential()))
    longer = keras.Sequential([*sequential().layers, keras.layers.Dense(1)])
    longer.build([None, INPUTS])
    with pytest.raises(ValueError, match="it has 4 layers, and the model has 5"):
        require_same_model(saved, describe(longer))


def optimizers(optimizer):
    model = sequential()
    model.compile(optimizer, "mse")
    optimizer.build(model.trainable_variables)
    return described(describe_optimizers(model))


class Own(keras.optimizers.SGD):
    def get_config(self):
        raise NotImplementedError


@pytest.mark.parametrize(
    "then, now, told",
    [
        (
            lambda: keras.optimizers.SGD(0.1),
            lambda: keras.optimizers.RMSprop(0.1),
            "its optimizer is SGD, and the model's is RMSprop",
        ),
        (lambda: keras.optimizers.SGD(0.1), lambda: Own(0.1), "is SGD, and the model's is Own"),
        (
            lambda: keras.optimizers.SGD(0.1),
            lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),
            "is SGD, and the model's is LossScaleOptimizer of SGD",
        ),
        (
            lambda: keras.optimizers.SGD(0.1, momentum=0.9),
            lambda: keras.optimizers.SGD(0.1, use_ema=True),
            "other variables than the model's: .*momentum = 0.9, the model's 0",
        ),
        (
            lambda: keras.optimizers.SGD(0.1),
            lambda: keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 9)),
            "other variables than the model's: learning_rate = 0.1, the model's CosineDecay",
        ),
        (
            lambda: keras.optimizers.Adam(lambda: 0.1),
            lambda: keras.optimizers.Adam(0.1),
            "other variables than the model's: learning_rate = a function without a name, the",
        ),
    ],
)
def test_another_optimizer_is_named(then, now, told):
    with pytest.raises(ValueError, match=told):
        require_same_optimizers(optimizers(then()), optimizers(now()))


def schedule(steps):
    return keras.optimizers.schedules.ExponentialDecay(0.1, steps, 0.9)


@pytest.mark.parametrize(
    "then, now, told",
    [
        ({}, {}, []),
        (
            {"learning_rate": 0.1},
            {"learning_rate": 0.01},
            ["the backup's learning_rate = 0.1, not with the program's 0.01."],
        ),
        (
            {"momentum": 0.9},
            {"momentum": 0.8, "clipnorm": 1.0},
            [
                "the program's clipnorm = 1, not with the backup's None.",
                "the program's momentum = 0.8, not with the backup's 0.9.",
            ],
        ),
        (
            {"learning_rate": schedule(10)},
            {"learning_rate": schedule(20)},
            ["the program's learning_rate.decay_steps = 20, not with the backup's 10."],
        ),
        ({"learning_rate": lambda: 0.1}, {"learning_rate": lambda: 0.2}, []),  # cannot be known
    ],
)
def test_settings_that_differ_are_told_and_whose_are_in_force(then, now, told):
    defaults = {"learning_rate": 0.5, "momentum": 0.7}
    saved, program = (
        optimizers(keras.optimizers.SGD(**defaults | settings)) for settings in (then, now)
    )
    require_same_optimizers(saved, program)
    assert resumed_settings(saved, program) == [f"The SGD continues with {one}" for one in told]


def test_optimizers_without_a_configuration_are_told_by_their_class():
    (saved,), (other,) = optimizers(Own(0.1)), optimizers(Own(0.2))
    assert saved["class"] == "Own" and saved["config"] is None
    require_same_optimizers([saved], [other])
    assert resumed_settings([saved], [other]) == []
