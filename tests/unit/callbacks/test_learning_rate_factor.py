"""The factor on an optimizer's learning rate."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.bits import assert_same_bits
from tests.support.tuned import make_small_model, samples
from tf_onebit.callbacks.learning_rate_factor import (
    begin,
    end,
    factors,
    learning_rate,
    own_learning_rate,
    power_of_size,
    rescale_pending_gradients,
    scaled_optimizers,
    set_factors,
)
from tf_onebit.optimizers import NormalizedAdaGrad

ME, OTHER = keras.callbacks.Callback(), keras.callbacks.Callback()


def update(optimizer, factor, steps=3):
    """Returns the weights after some steps with a factor."""
    model = make_small_model(optimizer)
    scaled_optimizers(model)
    set_factors(model, ME, [factor])
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


@pytest.mark.parametrize(
    "make_optimizer",
    [
        lambda **settings: keras.optimizers.SGD(0.1, **settings),
        lambda **settings: NormalizedAdaGrad(0.1, 1e4, 32, momentum=0.5, **settings),
    ],
)
def test_gradients_that_are_accumulated_keep_the_learning_rate_of_their_time(make_optimizer):
    """Gradients before the factor count half, as if the factor had been there all the time."""
    gradients = [np.float32([4.0, -2.0]), np.float32([1.0, 3.0])]

    def train(first, before):
        optimizer = make_optimizer(gradient_accumulation_steps=2)
        model = make_small_model(optimizer)
        weight = keras.Variable([1.0, 1.0])
        scaled_optimizers(model)
        set_factors(model, ME, [before])
        optimizer.apply([tf.constant(first)], [weight])
        set_factors(model, ME, [2.0])
        rescale_pending_gradients(model, [before], [2.0])
        optimizer.apply([tf.constant(gradients[1])], [weight])
        return weight.numpy()

    np.testing.assert_array_equal(train(gradients[0], 1.0), train(gradients[0] / 2, 2.0))


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
    set_factors(model, ME, [0.25])
    assert float(model.optimizer.learning_rate) == own_learning_rate(model) == 0.5
    assert learning_rate(model) == 0.125
    model.optimizer.learning_rate = 0.1
    assert float(model.optimizer.learning_rate) == pytest.approx(0.1)
    assert learning_rate(model) == pytest.approx(0.025)


def test_factor_acts_in_an_update_that_begins_in_the_optimizers_own_class():
    """A flush does this, also with `tf.config.run_functions_eagerly`."""
    model, weight = make_small_model(keras.optimizers.SGD(0.5)), keras.Variable([1.0])
    set_factors(model, ME, [0.25])
    keras.optimizers.SGD.apply(model.optimizer, [tf.constant([4.0])], [weight])
    assert weight.numpy() == 1.0 - 0.125 * 4.0


def test_factors_of_callbacks_multiply_until_all_have_ended():
    model = make_small_model()
    set_factors(model, ME, [0.5])
    set_factors(model, OTHER, [3.0])
    set_factors(model, ME, [2.0])
    assert factors(model) == [6.0]
    end(model, ME)
    assert factors(model) == [6.0]
    end(model, OTHER)
    assert factors(model) == [1.0]


def test_factor_of_a_fit_that_was_interrupted_is_gone_in_the_next():
    class Halving(keras.callbacks.Callback):
        def __init__(self, fails=False):
            super().__init__()
            self.fails = fails

        def on_train_begin(self, logs=None):
            begin(self.model, self, 0.5)

        def on_train_batch_end(self, batch, logs=None):
            assert factors(self.model) == [0.5]
            if self.fails:
                raise InterruptedError

    model = make_small_model()
    with pytest.raises(InterruptedError):
        model.fit(*samples(), callbacks=[Halving(fails=True)], verbose=0)
    model.fit(*samples(), callbacks=[Halving()], verbose=0)


def test_factor_is_not_saved(tmp_path):
    names = []
    for factor in (None, 0.5):
        model = make_small_model()
        if factor is not None:
            set_factors(model, ME, factor)
        path = tf.train.Checkpoint(model=model).write(str(tmp_path / "checkpoint"))
        names.append([name for name, _ in tf.train.list_variables(path)])
    assert names[0] == names[1]


def test_optimizer_is_saved_as_what_it_was():
    model = make_small_model(keras.optimizers.Adam(0.5))
    optimizer = keras.optimizers.deserialize(keras.optimizers.serialize(model.optimizer))
    set_factors(model, ME, [0.25])
    again = keras.optimizers.deserialize(keras.optimizers.serialize(model.optimizer))
    assert type(again) is type(optimizer) is keras.optimizers.Adam
    assert again.get_config() == optimizer.get_config()
    assert len(model.optimizer.variables) == len(optimizer.variables)


def test_optimizer_made_from_the_configuration_of_a_scaled_one_trains():
    model = make_small_model()
    (scaled,) = scaled_optimizers(model)
    fresh = type(scaled).from_config(scaled.get_config())
    assert float(fresh.learning_rate) == float(scaled.learning_rate)
    variable = keras.Variable(np.ones(2, np.float32))
    fresh.apply([np.full(2, 0.5, np.float32)], [variable])
    rate = float(fresh.learning_rate)
    np.testing.assert_allclose(variable.numpy(), 1 - rate * 0.5)
    model.optimizer = fresh
    assert factors(model) == [1.0]


def test_step_that_has_been_traced_is_traced_anew():
    model = make_small_model()
    model.run_eagerly = False
    data = {"x": samples()[0], "y": samples()[1], "batch_size": 128, "verbose": 0}
    model.fit(**data)
    set_factors(model, ME, [0.0])
    before = model.get_weights()
    model.fit(**data)
    assert_same_bits(model.get_weights(), before)
    set_factors(model, ME, [1.0])  # without another trace
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
