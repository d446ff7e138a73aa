"""Small training jobs for tests on a rank."""

import keras
import numpy as np
import tensorflow as tf

from tests.support.ranks import rank

INPUTS, CLASSES = 64, 10
BATCH_SIZE = 16  # per worker


def make_model(seed=0, units=32):
    """Returns a network whose kernels, except the last, are large enough to be quantized.

    Layers have no biases, because fewer variables are traced sooner.

    Args:
        seed: seed of the initial weights.
        units: number of units of the first layer.
    """
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((INPUTS,)),
            keras.layers.Dense(units, activation="relu", use_bias=False, name="first"),
            keras.layers.Dense(64, activation="relu", use_bias=False, name="second"),
            keras.layers.Dense(CLASSES, use_bias=False, dtype="float32", name="last"),
        ]
    )


def with_layer(layer):
    """Returns a function that makes a network with a layer in its middle."""

    def make():
        keras.utils.set_random_seed(0)
        return keras.Sequential(
            [
                keras.Input((INPUTS,)),
                keras.layers.Dense(32, activation="relu"),
                layer(),
                keras.layers.Dense(10, dtype="float32"),
            ]
        )

    return make


def embedding_model():
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((INPUTS,)),
            keras.layers.Lambda(lambda x: tf.cast(x > 0, tf.int32), output_shape=(INPUTS,)),
            keras.layers.Embedding(5, 3),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )


def make_data(steps, world_size):
    """Returns samples for some steps: x `[steps, world_size, BATCH_SIZE, INPUTS]`, and labels."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((steps, world_size, BATCH_SIZE, INPUTS)).astype(np.float32)
    labels = (x @ rng.standard_normal((INPUTS, CLASSES))).argmax(-1)
    return x, labels


def built(make):
    """Makes a model, and builds it if it does not know its inputs."""
    model = make()
    if not model.built:
        model.build([None, INPUTS])
    return model


def gradients_of(model, x, labels):
    """Returns the gradients of the loss of one batch, outside of `fit`: list of tensors."""
    return list(map(tf.convert_to_tensor, sparse_gradients_of(model, x, labels)))


def sparse_gradients_of(model, x, labels):
    """Returns what `gradients_of` does, with `tf.IndexedSlices` where gradients are sparse."""
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with tf.GradientTape() as tape:
        loss = loss_of(labels, model(x, training=True))
    sources = [v.value for v in model.trainable_variables]
    return tape.gradient(loss, sources, unconnected_gradients="zero")


def reference(model, optimizer, **arguments):
    """Compiles a model for one process. It runs eagerly, because graphs take longer to make."""
    return compiled(model, optimizer, run_eagerly=True, **arguments)


def compiled(model, optimizer, **arguments):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, **arguments)
    return model


def fit_part(model, steps, world_size, **arguments):
    """Fits on this worker's part of the samples."""
    x, labels = (array[:, rank()] for array in make_data(steps, world_size))
    return _fit(model, x, labels, BATCH_SIZE, **arguments)


def fit_whole(model, steps, world_size, **arguments):
    """Fits on the samples of all workers: the reference, without any exchange."""
    x, labels = make_data(steps, world_size)
    return _fit(model, x, labels, BATCH_SIZE * world_size, **arguments)


def _fit(model, x, labels, batch_size, **arguments):
    x, labels = x.reshape(-1, INPUTS), labels.reshape(-1)
    return model.fit(x, labels, batch_size, shuffle=False, verbose=0, **arguments)
