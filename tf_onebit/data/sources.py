"""Sources of samples, which are read by the samples' numbers in an epoch."""

import itertools
import math

import keras
import numpy as np
import tensorflow as tf

from tf_onebit.data.epochs import DatasetEpochs, PyDatasetEpochs
from tf_onebit.data.streams import Stream

# The most that is read at once.
_MOST_BYTES = 16 << 20
_MOST_BATCHES = 32
_ALIGNMENT = 64  # of TensorFlow's memory, in bytes


def source_of(data, shuffle):
    """Returns the source for the data of `ResizableBatches`.

    Raises:
        ValueError: for data of a kind that has no source.
    """
    if isinstance(data, tf.data.Dataset):
        return Stream(DatasetEpochs(data))
    if isinstance(data, keras.utils.PyDataset):
        return Stream(PyDatasetEpochs(data))
    structure = data if isinstance(data, tuple) else (data,)
    leaves = tf.nest.flatten(structure)
    if not 1 <= len(structure) <= 3 or not all(map(_is_array, leaves)):
        raise ValueError(
            "data must be an array, a tuple (x, y) or (x, y, sample_weight), a PyDataset, or a "
            "tf.data.Dataset of batches. In a tuple there may be structures of arrays. Received: "
            f"data={_described(data)}."
        )
    return Arrays(structure, shuffle)


def _is_array(leaf):
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype") and len(leaf.shape) > 0


def _described(data):
    described = tf.nest.map_structure(
        lambda leaf: (
            f"{type(leaf).__name__} of shape {tuple(leaf.shape)}"
            if hasattr(leaf, "shape")
            else type(leaf).__name__
        ),
        data,
    )
    return repr(described)


class Arrays:
    """Samples of arrays, in an order that is a function of seed and epoch.

    Args:
        structure: tuple of structures of arrays.
        shuffle: whether the order of an epoch is random.
    """

    why_not_repeatable = None

    def __init__(self, structure, shuffle):
        with tf.device("CPU"):
            self._arrays = [_as_keras_takes_it(leaf) for leaf in tf.nest.flatten(structure)]
        lengths = [len(array) for array in self._arrays]
        if len(set(lengths)) != 1 or lengths[0] == 0:
            raise ValueError(
                "All arrays must have the same number of samples, at least one. Received: arrays "
                f"of {lengths} samples."
            )
        self.samples = lengths[0]
        self._bytes_per_sample = sum(array.nbytes for array in self._arrays) // self.samples
        specs = [tf.TensorSpec([None, *array.shape[1:]], array.dtype) for array in self._arrays]
        self.element_spec = tf.nest.pack_sequence_as(structure, specs)
        self._shuffle = shuffle
        self._order_of = None

    def seek(self, seed, epoch, start):
        """Prepares to read samples of an epoch from `start` on."""
        if self._shuffle and self._order_of != (seed, epoch):
            self._order = np.random.default_rng([seed, epoch]).permutation(self.samples)
            self._order_of = (seed, epoch)

    def end_epoch(self, seed):
        """Ends an epoch whose samples have all been trained on."""

    def available(self, stop):
        """Returns how many of the epoch's first `stop` samples exist."""
        return min(stop, self.samples)

    def at_once(self, samples):
        """Returns how many batches of this many samples are worth reading at once."""
        fit_in = _MOST_BYTES // max(samples * self._bytes_per_sample, 1)
        return min(max(fit_in, 1), _MOST_BATCHES)

    def read(self, ranges):
        """Returns, for each range `(start, stop)` of the epoch's samples, a list of tensors."""
        arrays = self._arrays
        if self._shuffle:
            order = np.concatenate([self._order[start:stop] for start, stop in ranges])
            arrays = [_taken(array, order) for array in arrays]
            ends = list(itertools.accumulate(stop - start for start, stop in ranges))
            ranges = itertools.pairwise([0, *ends])
        with tf.device("CPU"):
            return [[_as_tensor(array[start:stop]) for array in arrays] for start, stop in ranges]


def _as_keras_takes_it(leaf):
    tensor = tf.convert_to_tensor(leaf)
    # Keras' `fit` casts arrays of floating-point numbers to `floatx`, too.
    if tensor.dtype.is_floating:
        tensor = tf.cast(tensor, keras.config.floatx())
    return tensor.numpy()


def _taken(array, order):
    """Returns samples in the given order, in memory that tensors can share."""
    if array.dtype.hasobject:
        return array.take(order, axis=0)
    shape = len(order), *array.shape[1:]
    size = math.prod(shape) * array.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    taken = memory[begin : begin + size].view(array.dtype).reshape(shape)
    # mode="raise" would copy the samples once more.
    return array.take(order, axis=0, out=taken, mode="clip")


def _as_tensor(array):
    return tf.raw_ops.Identity(input=array)  # tf.constant would copy it twice
