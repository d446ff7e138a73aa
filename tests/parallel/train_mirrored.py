"""Trains in a MirroredStrategy of three devices and without, and prints how far they are apart.

python -m tests.parallel.train_mirrored
"""

import json

import keras
import numpy as np
import tensorflow as tf

import tf_onebit
from tests.parallel.training import (
    INPUTS,
    compiled,
    embedding_model,
    make_data,
    make_model,
    with_layer,
)

REPLICAS = 3
BATCH_SIZE = 48
STEPS = 6

normalized_model = with_layer(lambda: keras.layers.BatchNormalization(synchronized=True))


class PartlyUsed(keras.Model):
    """Has weights that get no gradients."""

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
    "decayed": (make_model, lambda: keras.optimizers.AdamW(0.01), {}),
    "synchronized_in_a_loop": (normalized_model, sgd(), {"steps_per_execution": 3}),
    "embeddings": (embedding_model, sgd(), {}),
    "partly_used": (PartlyUsed, lambda: keras.optimizers.LossScaleOptimizer(sgd()()), {}),
    "eager": (normalized_model, sgd(), {"run_eagerly": True}),
}


def data(steps):
    x, labels = make_data(steps, BATCH_SIZE // 16)
    return x.reshape(-1, INPUTS), labels.reshape(-1)


def distance(make, optimizer, arguments):
    models = []
    for scope in (strategy().scope(), tf.distribute.get_strategy().scope()):
        with scope:
            model = compiled(make(), optimizer(), **arguments)
        model.fit(*data(STEPS), BATCH_SIZE, shuffle=False, verbose=0)
        models.append(model)
    first, second = ([v.numpy() for v in (*m.variables, *m.optimizer.variables)] for m in models)
    return max(float(np.abs(a - b).max()) for a, b in zip(first, second, strict=True))


def strategy(exchange=None):
    devices = [f"CPU:{index}" for index in range(REPLICAS)]
    return tf_onebit.distribute.MirroredStrategy(exchange, devices)


def error_of(make_optimizer, optimizer=None):
    with strategy().scope():
        model = compiled(make_model(), optimizer or make_optimizer())
    try:
        model.fit(*data(1), BATCH_SIZE, verbose=0)
    except ValueError as error:
        return str(error)


def main():
    cpu = tf.config.list_physical_devices("CPU")[0]
    parts = [tf.config.LogicalDeviceConfiguration()] * REPLICAS
    tf.config.set_logical_device_configuration(cpu, parts)
    result = {name: distance(*case) for name, case in CASES.items()}
    # 16 samples for three devices, and 2 at the end.
    with strategy(tf_onebit.OneBit()).scope():
        model = compiled(normalized_model(), sgd()(), metrics=["accuracy"])
    x, labels = (array[:50] for array in data(2))
    history = model.fit(x, labels, 16, validation_data=(x, labels), epochs=8, verbose=0).history
    result["uneven"] = [history["loss"][0], history["loss"][-1], history["val_loss"][-1]]
    reference = compiled(normalized_model(), sgd()())
    reference.set_weights(model.get_weights())
    expected = reference.predict(x, 16, verbose=0)
    result["predictions"] = float(np.abs(model.predict(x, 16, verbose=0) - expected).max())
    result["overwritten"] = error_of(sgd(use_ema=True, ema_overwrite_frequency=2))
    result["outside"] = error_of(None, optimizer=sgd()())
    print(json.dumps(result))


if __name__ == "__main__":
    main()
