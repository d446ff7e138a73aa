"""Data that come in another order each time are recognized."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TFEpochIterator

from tf_onebit.callbacks.fit_determinism import why_not_repeatable

ROWS = np.zeros([8, 2], np.float32)
DETERMINISTIC_IS_FALSE = tf.data.Options()
DETERMINISTIC_IS_FALSE.deterministic = False


def dataset():
    return tf.data.Dataset.from_tensor_slices(ROWS)


class Rows(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return ROWS


REPEATABLE = {
    "arrays_in_their_order": lambda: {"x": ROWS, "shuffle": False},
    "sequence": lambda: {"x": Rows()},
    "dataset": lambda: {"x": dataset().batch(2)},
    "shuffled_with_a_seed": lambda: {"x": dataset().shuffle(8, seed=1).batch(2)},
    "noise_with_a_seed": lambda: {
        "x": dataset().map(lambda x: x + tf.random.normal([2], seed=1)).batch(2)
    },
    "stateless_noise": lambda: {
        "x": dataset().map(lambda x: x + tf.random.stateless_normal([2], [0, 0])).batch(2)
    },
}
SEED_WANTED = {
    "arrays": ("RandomShuffle", lambda: {"x": ROWS, "shuffle": True}),
    "shuffled": ("ShuffleDataset", lambda: {"x": dataset().shuffle(8).batch(2)}),
    "noise": (
        "RandomStandardNormal",
        lambda: {"x": dataset().map(lambda x: x + tf.random.normal([2])).batch(2)},
    ),
    "files": (
        "ShuffleDatasetV3",
        lambda: {"x": tf.data.Dataset.range(2).flat_map(lambda _: dataset().shuffle(8)).batch(2)},
    ),
}


@pytest.fixture(autouse=True)
def no_seed():
    tf.random.set_seed(None)


def reason(arguments):
    strategy = tf.distribute.get_strategy()
    return why_not_repeatable(TFEpochIterator(distribute_strategy=strategy, **arguments))


@pytest.mark.parametrize("name", REPEATABLE)
def test_repeatable(name):
    assert reason(REPEATABLE[name]()) is None


@pytest.mark.parametrize("name", SEED_WANTED)
def test_a_seed_is_all_that_is_wanted(name):
    operation, make = SEED_WANTED[name]
    assert reason(make()) == f"{operation} has no seed. Call keras.utils.set_random_seed"
    keras.utils.set_random_seed(1)
    assert reason(make()) is None


def test_not_repeatable():
    assert "GeneratorDataAdapter" in reason({"x": ((ROWS,) for _ in range(2))})
    as_it_comes = dataset().batch(2).with_options(DETERMINISTIC_IS_FALSE)
    assert "deterministic=False" in reason({"x": as_it_comes})
