"""Where samples come from: sources that are read by the numbers of samples in an epoch."""

import keras
import numpy as np
import tensorflow as tf

from tf_onebit.data.epochs import DatasetEpochs, PyDatasetEpochs
from tf_onebit.data.streams import Stream


def source_of(data, shuffle):
    """The source for the data of `ResizableBatches`.

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
            "data must be an array, a tuple (x, y) or (x, y, sample_weight) of arrays or of "
            "structures of them, a keras.utils.PyDataset, or a tf.data.Dataset of batches. "
            f"Received: data={_described(data)}."
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
        specs = [tf.TensorSpec([None, *array.shape[1:]], array.dtype) for array in self._arrays]
        self.element_spec = tf.nest.pack_sequence_as(structure, specs)
        self._shuffle = shuffle
        self._order_of = None

    def seek(self, seed, epoch, start):
        """Makes ready to read samples of an epoch from `start` on."""
        if self._shuffle and self._order_of != (seed, epoch):
            self._order = np.random.default_rng([seed, epoch]).permutation(self.samples)
            self._order_of = (seed, epoch)

    def end_epoch(self, seed):
        """To be called when all samples of an epoch have been trained on."""

    def available(self, stop):
        """How many of the epoch's first `stop` samples there are."""
        return min(stop, self.samples)

    def read(self, start, stop):
        """Samples `start` to `stop` of the epoch: the tensors of a batch, in a list."""
        with tf.device("CPU"):
            if self._shuffle:
                indices = tf.constant(self._order[start:stop])
                return [tf.gather(array, indices) for array in self._arrays]
            return [array[start:stop] for array in self._arrays]


def _as_keras_takes_it(leaf):
    tensor = tf.identity(leaf)  # where the caller says, even if it was on another device
    # As in fit without these batches, where arrays become numbers of Keras' own precision.
    return tf.cast(tensor, keras.config.floatx()) if tensor.dtype.is_floating else tensor
