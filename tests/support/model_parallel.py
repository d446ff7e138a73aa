"""Models, data and references for tests of model parallelism."""

import keras
import numpy as np
from keras import layers, ops

BATCH_SIZE, STEPS = 16, 100  # of all groups together
CLASSES = 12  # which 2 and 4 members divide, as they divide all other sizes
_BATCHES = 20


def mlp():
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((32,)),
            layers.Dense(32, activation="relu", kernel_regularizer="l2"),
            layers.Dense(32, activation="gelu"),
            layers.Dense(CLASSES),
        ]
    )


def cnn(normalization=layers.BatchNormalization):
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.Conv2D(8, 3, activation="relu", padding="same"),
            normalization(),
            layers.Conv2D(8, 3, strides=2, use_bias=False),
            normalization(),
            layers.ReLU(),
            layers.GlobalAveragePooling2D(),
            layers.Dense(CLASSES),
        ]
    )


class Transformer(keras.Model):
    """A language model with one block, and with embeddings that serve twice."""

    def __init__(self):
        super().__init__()
        # Normalization of small values would amplify differences in rounding.
        self.tokens = layers.ReversibleEmbedding(CLASSES, 8, embeddings_initializer="glorot_normal")
        self.places = layers.Embedding(6, 8, embeddings_initializer="glorot_normal")
        self.attention = layers.MultiHeadAttention(4, 2)
        self.hidden, self.last = layers.Dense(32, activation="gelu"), layers.Dense(8)
        self.norms = [layers.LayerNormalization() for _ in range(3)]

    def call(self, tokens):
        x = self.tokens(tokens) + self.places(ops.arange(tokens.shape[1]))
        y = self.norms[0](x)
        x += self.attention(y, y, use_causal_mask=True)
        x += self.last(self.hidden(self.norms[1](x)))
        return self.tokens(self.norms[2](x), reverse=True)


def transformer():
    keras.utils.set_random_seed(0)
    model = Transformer()
    model(ops.zeros([1, 6], "int32"))
    return model


MODELS = {"mlp": mlp, "cnn": cnn, "transformer": transformer}


def data_of(name, number=0, count=1):
    """Returns the samples and labels of one of `count` groups, and the size of its batches."""
    rng, size = np.random.default_rng(0), _BATCHES * BATCH_SIZE
    if name == "transformer":
        x, y = (rng.integers(0, CLASSES, (size, 6)) for _ in range(2))
    else:
        shape = MODELS[name]().input_shape[1:]
        x, y = rng.normal(size=(size, *shape)).astype("float32"), rng.integers(0, CLASSES, size)
    mine = np.arange(size).reshape(_BATCHES, count, -1)[:, number].ravel()
    return x[mine], y[mine], BATCH_SIZE // count


def compiled(model, optimizer, **settings):
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(True), **settings)
    return model


def fit(model, name, number=0, count=1, epochs=STEPS // _BATCHES, **settings):
    """Trains a model on the data of a group."""
    x, y, size = data_of(name, number, count)
    return model.fit(x, y, size, epochs=epochs, shuffle=False, verbose=0, **settings)


def plain_model(name, optimizer, **settings):
    """Returns an unsplit model after training."""
    model = compiled(MODELS[name](), optimizer())
    fit(model, name, **settings)
    return model


def difference(arrays, others):
    """Returns the largest difference between the values of two lists of arrays."""
    pairs = zip(arrays, others, strict=True)
    return max(np.abs(np.subtract(one, other)).max() for one, other in pairs)
