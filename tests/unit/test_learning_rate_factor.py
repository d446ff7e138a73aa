"""The factor on an optimizer's learning rate."""

import keras
import numpy as np
import pytest

from tests.unit.tuned import assert_same_bits, make_small_model, samples
from tf_onebit.callbacks.learning_rate_factor import (
    factors,
    learning_rate,
    own_learning_rate,
    power_of_size,
    scaled_optimizers,
    set_factors,
)


def update(optimizer, factor, steps=3):
    """Weights after some steps with a factor."""
    model = make_small_model(optimizer)
    scaled_optimizers(model)
    set_factors(model, [factor])
    model.fit(*samples(), batch_size=128, shuffle=False, verbose=0)
    return model.get_weights()


DECAY = keras.optimizers.schedules.InverseTimeDecay
OPTIMIZERS = {
    "number": lambda rate: keras.optimizers.SGD(rate, momentum=0.9),
    "schedule": lambda rate: keras.optimizers.SGD(DECAY(rate, 1, 0.5)),
    "function": lambda rate: keras.optimizers.SGD(lambda: rate),
    "decay": lambda rate: keras.optimizers.AdamW(rate, weight_decay=0.5),
    "scaled loss": lambda rate: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(rate)),
    "mine": lambda rate: keras.optimizers.Nadam(rate),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_factor_acts_as_a_learning_rate_so_much_higher(name):
    assert_same_bits(update(OPTIMIZERS[name](0.01), 2.0), update(OPTIMIZERS[name](0.02), 1.0))


def test_without_a_factor_nothing_changes():
    model = make_small_model()
    model.fit(*samples(), batch_size=128, shuffle=False, verbose=0)
    assert_same_bits(update(None, 1.0), model.get_weights())


def test_learning_rate_outside_of_a_step_is_the_optimizers_own():
    model = make_small_model(keras.optimizers.SGD(0.5))
    assert factors(model) == [1.0]
    set_factors(model, [0.25])
    assert float(model.optimizer.learning_rate) == own_learning_rate(model) == 0.5
    assert learning_rate(model) == 0.125
    model.optimizer.learning_rate = 0.1
    assert float(model.optimizer.learning_rate) == pytest.approx(0.1)
    assert learning_rate(model) == pytest.approx(0.025)


def test_optimizer_is_saved_as_what_it_was():
    model = make_small_model(keras.optimizers.Adam(0.5))
    optimizer = keras.optimizers.deserialize(keras.optimizers.serialize(model.optimizer))
    set_factors(model, [0.25])
    again = keras.optimizers.deserialize(keras.optimizers.serialize(model.optimizer))
    assert type(again) is type(optimizer) is keras.optimizers.Adam
    assert again.get_config() == optimizer.get_config()
    assert len(model.optimizer.variables) == len(optimizer.variables)


def test_step_that_has_been_traced_is_traced_anew():
    model = make_small_model()
    model.run_eagerly = False
    data = {"x": samples()[0], "y": samples()[1], "batch_size": 128, "verbose": 0}
    model.fit(**data)
    set_factors(model, [0.0])
    before = model.get_weights()
    model.fit(**data)
    assert_same_bits(model.get_weights(), before)
    set_factors(model, [1.0])  # without another trace
    model.fit(**data)
    assert not np.array_equal(model.get_weights()[0], before[0])


@pytest.mark.parametrize(
    ("optimizer", "rule", "power"),
    [
        (keras.optimizers.SGD(0.1), "auto", 1.0),
        (keras.optimizers.Adam(0.1), "auto", 0.5),
        (keras.optimizers.RMSprop(0.1), "auto", 0.5),
        (keras.optimizers.Adam(0.1), "linear", 1.0),
        (keras.optimizers.SGD(0.1), "constant", 0.0),
    ],
)
def test_power_of_the_minibatch_size(optimizer, rule, power):
    assert power_of_size(optimizer, rule) == power
