"""Trains in a MirroredStrategy of two or three devices and without, and prints the differences.

python -m tests.parallel.train_mirrored
"""

import contextlib
import json
import pathlib
import sys
import tempfile

import keras
import numpy as np
import tensorflow as tf

import tf_onebit
from tests.support.late import Late, whole_batches
from tests.support.recording import DATA, Recording, fit, resizing
from tests.support.scalars import scalars_in
from tests.support.training import (
    INPUTS,
    compiled,
    embedding_model,
    make_data,
    reference,
    with_layer,
)
from tf_onebit.optimizers import NormalizedAdaGrad

REPLICAS = 3
DEVICES = [f"CPU:{index}" for index in range(REPLICAS)]
BATCH_SIZE = 48
STEPS = 6

normalized_model = with_layer(lambda: keras.layers.BatchNormalization(synchronized=True))


def make_model():
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(32, activation="relu"), keras.layers.Dense(10)]
    return keras.Sequential([keras.Input((INPUTS,)), *layers])


class PartlyUsed(keras.Model):
    """A model with weights that get no gradients."""

    def __init__(self):
        super().__init__()
        keras.utils.set_random_seed(0)
        self.used, self.unused = keras.layers.Dense(10), keras.layers.Dense(10)

    def build(self, input_shape):
        self.used.build(input_shape)
        self.unused.build(input_shape)
        self.built = True

    def call(self, x):
        return self.used(x)


def sgd(**arguments):
    return lambda: keras.optimizers.SGD(0.1, **arguments)


# How to make the model and the optimizer, and how to compile.
CASES = {
    "clipped": (make_model, sgd(clipnorm=0.05, momentum=0.9), {}),
    "accumulated": (
        make_model,
        sgd(gradient_accumulation_steps=2, clipnorm=0.05, use_ema=True),
        {},
    ),
    "overwritten": (
        make_model,
        sgd(clipnorm=0.05, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2),
        {},
    ),
    "accumulated_and_overwritten": (
        make_model,
        sgd(gradient_accumulation_steps=2, use_ema=True, ema_overwrite_frequency=3),
        {"run_eagerly": True},
    ),
    "decayed": (make_model, lambda: keras.optimizers.AdamW(0.01, global_clipnorm=0.1), {}),
    "synchronized_in_a_loop": (normalized_model, sgd(), {"steps_per_execution": 3}),
    "adagrad": (
        make_model,
        lambda: NormalizedAdaGrad(0.1, 500, BATCH_SIZE, 0.9, epsilon=0.1, weight_decay=0.01),
        {},
    ),
    "embeddings": (embedding_model, sgd(), {}),
    "partly_used": (PartlyUsed, lambda: keras.optimizers.LossScaleOptimizer(sgd()()), {}),
    "eager": (normalized_model, sgd(), {"run_eagerly": True}),
}


def data(steps):
    x, labels = make_data(steps, BATCH_SIZE // 16)
    return x.reshape(-1, INPUTS), labels.reshape(-1)


def distance(make, optimizer, arguments):
    models = []
    two_devices = tf_onebit.distribute.MirroredStrategy(devices=DEVICES[:2])
    at_once = {"run_eagerly": True}  # a graph would take longer to make
    for scope, how in ((two_devices.scope(), arguments), (contextlib.nullcontext(), at_once)):
        with scope:
            model = compiled(make(), optimizer(), **how)
        model.fit(*data(STEPS), BATCH_SIZE, shuffle=False, verbose=0)
        models.append(model)
    first, second = ([v.numpy() for v in (*m.variables, *m.optimizer.variables)] for m in models)
    return max(float(np.abs(a - b).max()) for a, b in zip(first, second, strict=True))


def distance_from_late():
    """Returns how far delayed, scaled, accumulated training is from the same in one process."""

    def optimizer():
        accumulating = keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2)
        return keras.optimizers.LossScaleOptimizer(accumulating, initial_scale=64.0)

    with strategy(tf_onebit.Delayed(tf_onebit.FullPrecision())).scope():
        model = compiled(PartlyUsed(), optimizer())
    model.fit(*data(STEPS), BATCH_SIZE, shuffle=False, verbose=0)
    late = Late(sgd(momentum=0.9), PartlyUsed)
    whole = whole_batches(STEPS, REPLICAS)
    for update in range(STEPS // 2):
        late.step(*whole[2 * update : 2 * update + 2])
    late.flush()
    pairs = zip(model.get_weights(), late.model.get_weights(), strict=True)
    return max(float(np.abs(a - b).max()) for a, b in pairs)


def strategy(exchange=None):
    return tf_onebit.distribute.MirroredStrategy(exchange, DEVICES)


def error_of(optimizer):
    with strategy().scope():
        model = compiled(make_model(), optimizer)
    try:
        model.fit(*data(1), BATCH_SIZE, verbose=0)
    except ValueError as error:
        return str(error)


def resized(strategy, name, steps_per_execution):
    """Returns the samples that each replica was trained on, while the size of the data changes."""
    with strategy.scope():
        model = Recording()
        model.compile("sgd", "mse", steps_per_execution=steps_per_execution)
    batches = tf_onebit.ResizableBatches(DATA[name](), 6)
    fit(model, batches, resizing(batches, {1: 30, 2: 3, 4: 48, 5: 12}), epochs=2)
    tried = len(model.batches)
    peek = batches.peek(40, 18)
    for minibatch in peek:
        model.train_function(minibatch)
    batches_of_replicas = [model.batches[:tried], model.batches[tried:]]
    return [*batches_of_replicas, model.steps - len(peek), batches.position]


def tuned():
    """Returns how far a search moves a training, then sizes and losses of a tuned one."""
    ends = []
    for callbacks in ([], [tf_onebit.callbacks.AutoMinibatchSize]):
        with strategy(tf_onebit.OneBit(min_size=0)).scope():
            model = compiled(make_model(), sgd(momentum=0.5)())
        batches = tf_onebit.ResizableBatches(data(8), 12, seed=1)
        tuning = [c(batches, 192, 144, None, 12, 1e9, multiple=1) for c in callbacks]
        model.fit(batches, epochs=2, callbacks=tuning, verbose=0)
        ends.append([v.numpy() for v in (*model.variables, *model.optimizer.variables)])
        states = model.optimizer.gradient_exchange.carried.states()
        ends[-1] += [one[name] for e in states for one in e for name in sorted(one)]
    moved = max(float(np.abs(a - b).max()) for a, b in zip(*ends, strict=True))
    searches = len(tuning[0].history["trials"][1:])
    size = tf_onebit.callbacks.AutoMinibatchSize(batches, 288, 288, multiple=4, error_margin=1e9)
    held_out = tuple(array[:96] for array in data(8))
    rate = tf_onebit.callbacks.AutoLearningRate(held_out, 150, min_improvement=0.01)
    losses = model.fit(batches, epochs=2, callbacks=[size, rate], verbose=0).history["loss"]
    return [moved, searches, size.history["global_batch_size"], losses, rate.history["criterion"]]


def monitored():
    """Returns what a Monitor writes at the last step."""
    with strategy(tf_onebit.OneBit(min_size=0)).scope():
        model = compiled(make_model(), sgd()())
    with tempfile.TemporaryDirectory() as folder:
        monitor = tf_onebit.callbacks.Monitor(log_dir=folder, update_freq=1)
        model.fit(*data(STEPS), BATCH_SIZE, callbacks=[monitor], verbose=0)
        return {name: [step, value] for step, name, value in scalars_in(pathlib.Path(folder))}


def main(*names):
    """Prints how far cases are from one device, or without names all other results."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    parts = [tf.config.LogicalDeviceConfiguration()] * REPLICAS
    tf.config.set_logical_device_configuration(cpu, parts)
    print(json.dumps({name: distance(*CASES[name]) for name in names} or others()))


def others():
    result = {}
    # 16 samples for three devices, and 2 at the end.
    with strategy(tf_onebit.OneBit()).scope():
        model = compiled(normalized_model(), sgd()(), metrics=["accuracy"])
    x, labels = (array[:50] for array in data(2))
    history = model.fit(x, labels, 16, validation_data=(x, labels), epochs=8, verbose=0).history
    result["uneven"] = [history["loss"][0], history["loss"][-1], history["val_loss"][-1]]
    alone = reference(normalized_model(), sgd()())
    alone.set_weights(model.get_weights())
    expected = alone.predict(x, 16, verbose=0)
    result["predictions"] = float(np.abs(model.predict(x, 16, verbose=0) - expected).max())
    result["resized"] = {
        f"{type(s).__module__.split('.')[0]}-{name}-{steps}": resized(s, name, steps)
        for s in (strategy(tf_onebit.OneBit()), tf.distribute.MirroredStrategy(DEVICES))
        for name, steps in (("arrays", 1), ("tf.data", 2))
    }
    result["tuned"] = tuned()
    result["monitored"] = monitored()
    result["late"] = distance_from_late()
    result["outside"] = error_of(sgd()())
    return result


if __name__ == "__main__":
    main(*sys.argv[1:])
