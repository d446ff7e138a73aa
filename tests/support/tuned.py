"""A small task for tests of callbacks that tune training."""

import functools

import keras
import numpy as np

from tf_onebit import ResizableBatches
from tf_onebit.callbacks import learning_rate_factor

SAMPLES, INPUTS, CLASSES = 384, 8, 4


def samples(count=SAMPLES):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((count, INPUTS)).astype(np.float32)
    return x, (x @ rng.standard_normal((INPUTS, CLASSES))).argmax(-1)


def batches(size=32, count=SAMPLES, data=None):
    return ResizableBatches(samples(count) if data is None else data, size, seed=1)


class Noise(keras.layers.Layer):
    """A layer that draws from Keras' global generator."""

    def call(self, x, training=False):
        return x + keras.random.normal(keras.ops.shape(x), stddev=0.01) if training else x


def make_model(optimizer=None, **arguments):
    """Returns a model with all kinds of state that a trial might change, not built at first."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.layers.Dense(16, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.1, seed=1),
            Noise(),
            keras.layers.Dense(CLASSES),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = optimizer or keras.optimizers.SGD(0.1, momentum=0.5)
    model.compile(optimizer, loss, metrics=["accuracy"], **arguments)
    return model


def make_small_model(optimizer=None):
    """Returns a model for tests of events between steps."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((INPUTS,)), keras.layers.Dense(CLASSES)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer or sgd(), loss, metrics=["accuracy"])
    return model


def sgd():
    return keras.optimizers.SGD(0.1)


@functools.cache
def _traced(make_optimizer):
    model = make_small_model(make_optimizer())
    model.optimizer.build(model.trainable_variables)
    return model, [(variable, variable.numpy()) for variable in _variables_of(model)]


def untrained(make_optimizer=sgd):
    """Returns a small model as if it had never been trained.

    It is the same model each time, so that its step is traced once. A test that compiles it, or
    that changes its methods, makes one of its own.
    """
    model, begin = _traced(make_optimizer)
    keras.utils.set_random_seed(0)
    model.reset_metrics()
    for variable, value in begin:
        variable.assign(value)
    for optimizer in learning_rate_factor.scaled_optimizers(model):
        # A training that ended in an error has left its factors.
        optimizer.scaling.factor_of = {}
        optimizer.scaling.update()
    return model


def _variables_of(model):
    return [*model.variables, *model.optimizer.variables]


def state_of(model):
    return [variable.numpy() for variable in _variables_of(model)]


class At(keras.callbacks.Callback):
    """A callback that calls a function once, before the first step from a position on."""

    def __init__(self, data, position, function):
        super().__init__()
        self.data, self.position, self.function = data, position, function

    def on_train_batch_begin(self, batch, logs=None):
        if self.function is not None and self.data.position >= self.position:
            function, self.function = self.function, None
            function(self.model)


class Interruption(keras.callbacks.Callback):
    """A callback that ends training with an error after some steps."""

    def __init__(self, steps):
        super().__init__()
        self.steps_left = steps

    def on_train_batch_end(self, batch, logs=None):
        self.steps_left -= 1
        if self.steps_left == 0:
            raise InterruptedError
