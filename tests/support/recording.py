"""A model that remembers the samples that it was trained on."""

import collections
import types
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf


class Recording(keras.Model):
    """A model whose samples are their own numbers, in the first column of `x`.

    Attributes:
        batches: list: the numbers of the samples of each step, or each replica's part of one.
    """

    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(1)
        self.layer.build([None, 1])
        self._record = types.SimpleNamespace(batches=[])  # Keras would wrap a list

    @property
    def batches(self):
        return self._record.batches

    def call(self, x):
        return self.layer(x)

    def train_step(self, data):
        x = keras.utils.unpack_x_y_sample_weight(data)[0]

        def record(numbers):
            self.batches.append(numbers.astype(int).tolist())
            return np.float32(0)

        recorded = tf.numpy_function(record, [x[:, 0]], tf.float32)
        with tf.control_dependencies([recorded]):
            return super().train_step(data)

    @property
    def sizes(self):
        return [len(batch) for batch in self.batches]

    @property
    def samples(self):
        return [number for batch in self.batches for number in batch]

    @property
    def steps(self):
        return int(self.optimizer.iterations.numpy())


def recording(**arguments):
    """Returns a compiled `Recording`."""
    model = Recording()
    model.compile(keras.optimizers.SGD(1e-6, weight_decay=0.1), "mse", **arguments)
    return model


def numbered(count):
    """Returns numbered samples: the value of each is its number."""
    x = np.arange(count, dtype=np.float32)[:, np.newaxis]
    return x, np.zeros_like(x)


class Between(keras.callbacks.Callback):
    """A callback that calls a function after each step, or execution, with their number so far.

    Args:
        after_step: function.
    """

    def __init__(self, after_step):
        super().__init__()
        self._after_step = after_step
        self._steps = 0

    def on_train_batch_end(self, batch, logs=None):
        self._steps += 1
        self._after_step(self._steps)


def resizing(batches, sizes):
    """Returns a callback that sets sizes: a dictionary from a number of steps to the next size."""
    return Between(lambda steps: batches.resize(sizes[steps]) if steps in sizes else None)


def fresh(model):
    """Returns a traced model as if it had never been trained."""
    model.batches.clear()
    model.optimizer.iterations.assign(0)
    return model


def fit(model, batches, callback=None, **arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        callbacks = [callback] if callback else []
        return model.fit(batches, callbacks=callbacks, verbose=0, **arguments)


def times_each(samples, count):
    """Returns how often each of `count` samples occurs, if all occur equally often."""
    occurrences = collections.Counter(samples)
    (times,) = {occurrences[number] for number in range(count)}
    return times


class NumberedBatches(keras.utils.PyDataset):
    """Batches of uneven sizes: 1, 2, 3 samples and so on."""

    def __init__(self, num_batches, **arguments):
        super().__init__(**arguments)
        self._num_batches = num_batches
        self.epochs_ended = 0

    @property
    def num_batches(self):
        return self._num_batches

    def __getitem__(self, index):
        first = index * (index + 1) // 2
        x = np.arange(first, first + index + 1, dtype=np.float32)[:, np.newaxis]
        return x, np.zeros_like(x)

    def on_epoch_end(self):
        self.epochs_ended += 1


class ShuffledBatches(keras.utils.PyDataset):
    """Batches of 7 of 105 samples.

    Each epoch shuffles the order of the last, with NumPy's numbers.
    """

    num_batches = 15

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self._order = np.arange(105, dtype=np.float32)[:, np.newaxis]

    def __getitem__(self, index):
        x = self._order[7 * index : 7 * index + 7]
        return x, np.zeros_like(x)

    def on_epoch_begin(self):
        self._order = self._order[::-1]

    def on_epoch_end(self):
        self._order = np.random.permutation(self._order)


def shuffled(count):
    dataset = tf.data.Dataset.from_tensor_slices(numbered(count))
    return dataset.shuffle(count, seed=3)


def of_unknown_length(count):
    dataset = tf.data.Dataset.from_tensor_slices(numbered(count)).batch(7)
    return dataset.filter(lambda x, y: True)


DATA = {
    "arrays": lambda: numbered(105),
    "tf.data": lambda: of_unknown_length(105),
    "PyDataset": lambda: NumberedBatches(14),
}
every_data = pytest.mark.parametrize("make_data", DATA.values(), ids=DATA)

# Their order differs in each epoch, and does not depend on its number alone.
SHUFFLED = {
    "tf.data, shuffled": lambda: shuffled(105).batch(7),
    "tf.data, shuffled and repeated": lambda: shuffled(35).repeat(3).batch(7),
    "PyDataset, shuffled": ShuffledBatches,
    "PyDataset with workers, shuffled": lambda: ShuffledBatches(workers=2, max_queue_size=3),
}
