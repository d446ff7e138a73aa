"""Tasks whose data need no download: clothes in pictures, and the text of Python's own library."""

import dataclasses
import functools
import gzip
import pathlib
import sysconfig
from collections.abc import Callable

import keras
import numpy as np

FASHION = pathlib.Path("/usr/share/datasets/fashion-mnist")
CLASSES = 10
CHARACTERS, CONTEXT = 128, 64  # codes of ASCII, and the length of a sequence
_WIDTH, _BLOCKS, _HEADS = 160, 4, 4
_LEARNED_BYTES, _HELD_OUT_BYTES = 8 * 2**20, 2**18


@dataclasses.dataclass(frozen=True)
class Task:
    """Data, model and learning rates.

    Attributes:
        load: function from a folder to inputs and labels, to learn from and held out: four arrays.
        load_random: function that returns a few arrays like these, with random values.
        layers: function that returns a list of new Keras layers, which end in logits.
        rates: dictionary of learning rates by optimizer, from which a search for the best starts.
        batch_size: number of samples of all workers in a step.
    """

    load: Callable
    load_random: Callable
    layers: Callable
    rates: dict
    batch_size: int


def _pictures(folder):
    arrays = []
    for part in ("train", "t10k"):
        for kind, header in (("images-idx3", 16), ("labels-idx1", 8)):
            path = folder / f"{part}-{kind}-ubyte.gz"
            if not path.exists():
                raise SystemExit(
                    f"There is no {path}. Install Debian's package dataset-fashion-mnist, or pass "
                    "--data with a folder that has its files."
                )
            arrays.append(np.frombuffer(gzip.open(path).read(), np.uint8, offset=header))
    images, labels, held_out, held_out_labels = arrays
    scaled = [pixels.reshape(-1, 784).astype(np.float32) / 255 for pixels in (images, held_out)]
    return scaled[0], labels.astype(np.int32), scaled[1], held_out_labels.astype(np.int32)


def _random_pictures(sizes=(512, 128)):
    rng = np.random.default_rng(1)
    parts = [
        (rng.random((size, 784), np.float32), rng.integers(CLASSES, size=size, dtype=np.int32))
        for size in sizes
    ]
    return [array for part in parts for array in part]


def _text(folder):
    """Returns sequences of the standard library's sources. Each label is the next character."""
    del folder  # the text comes with Python
    library = pathlib.Path(sysconfig.get_path("stdlib"))
    paths = sorted(path for path in library.rglob("*.py") if "-packages" not in str(path))
    np.random.default_rng(1).shuffle(paths)
    codes = np.frombuffer(b"".join(path.read_bytes() for path in paths), np.uint8)
    codes = codes[codes < CHARACTERS][: _LEARNED_BYTES + _HELD_OUT_BYTES]
    learned, held_out = codes[:-_HELD_OUT_BYTES], codes[-_HELD_OUT_BYTES:]
    return [*_sequences(learned), *_sequences(held_out)]


def _random_text():
    codes = np.random.default_rng(1).integers(CHARACTERS, size=(2, 64 * CONTEXT + 1))
    return [array for part in codes for array in _sequences(part)]


def _sequences(codes):
    size = (len(codes) - 1) // CONTEXT * CONTEXT
    shifted = codes[:size], codes[1 : size + 1]
    return [part.reshape(-1, CONTEXT).astype(np.int32) for part in shifted]


def _dense_layers():
    return [
        keras.Input((784,)),
        *(keras.layers.Dense(256, activation="relu") for _ in range(2)),
        keras.layers.Dense(CLASSES),
    ]


def _convolutions():
    layers = [keras.Input((784,)), keras.layers.Reshape((28, 28, 1))]
    for filters in (32, 64):
        layers += [
            keras.layers.Conv2D(filters, 3, strides=2, padding="same", use_bias=False),
            keras.layers.BatchNormalization(momentum=0.9),
            keras.layers.ReLU(),
        ]
    return [
        *layers,
        keras.layers.Flatten(),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dense(CLASSES),
    ]


class _Positions(keras.layers.Layer):
    """Embedding of characters and of their places."""

    def build(self, _):
        self.characters = keras.layers.Embedding(CHARACTERS, _WIDTH)
        self.places = self.add_weight(shape=(CONTEXT, _WIDTH), initializer="random_normal")

    def call(self, codes):
        return self.characters(codes) + self.places


class _Block(keras.layers.Layer):
    """Part of a Transformer: attention to earlier characters, then two dense layers."""

    def build(self, _):
        self.norms = [keras.layers.LayerNormalization() for _ in range(2)]
        self.attention = keras.layers.MultiHeadAttention(_HEADS, _WIDTH // _HEADS)
        self.inner = keras.layers.Dense(4 * _WIDTH, activation="gelu")
        self.outer = keras.layers.Dense(_WIDTH)

    def call(self, x):
        normed = self.norms[0](x)
        x = x + self.attention(normed, normed, use_causal_mask=True)
        return x + self.outer(self.inner(self.norms[1](x)))


def _transformer():
    return [
        keras.Input((CONTEXT,), dtype="int32"),
        _Positions(),
        *(_Block() for _ in range(_BLOCKS)),
        keras.layers.LayerNormalization(),
        keras.layers.Dense(CHARACTERS),
    ]


_PICTURE_RATES = {"sgd": 0.4, "momentum": 0.05, "adam": 0.002, "adamw": 0.002}
_TEXT_RATES = {"sgd": 0.8, "momentum": 0.1, "adam": 0.002, "adamw": 0.002}
_of_pictures = functools.partial(Task, _pictures, _random_pictures)
TASKS = {
    "mlp": _of_pictures(_dense_layers, _PICTURE_RATES, 128),
    "cnn": _of_pictures(_convolutions, _PICTURE_RATES, 128),
    "transformer": Task(_text, _random_text, _transformer, _TEXT_RATES, 32),
}
