"""Epochs of streams, which repeat the order of an epoch where the data allow it."""

import contextlib
import random
import warnings

import keras
import numpy as np
import tensorflow as tf

from tf_onebit._framework_internals.keras_data import batches_of_py_dataset, spec_of_py_dataset
from tf_onebit.data.determinism import has_shuffle, why_not_repeatable


class DatasetEpochs:
    """Epochs of a `tf.data.Dataset` of batches.

    A `shuffle` with a seed counts iterations, and uses another order in each. So epoch e is
    iteration e. All iterations before it are begun first, unless they have been.

    Args:
        dataset: `tf.data.Dataset`.

    Raises:
        ValueError: if it has no end.

    Attributes:
        element_spec: structure of the `tf.TensorSpec` of a batch.
        why_not_repeatable: why the order differs after a restart of the program, or None.
    """

    def __init__(self, dataset):
        if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise ValueError(
                "data must end, so that an epoch ends. Received: an infinite tf.data.Dataset. "
                "Use take(n), or do not call repeat()."
            )
        self._dataset = dataset
        self._opened = 0
        self.element_spec = dataset.element_spec
        self.why_not_repeatable = why_not_repeatable(dataset)

    def open(self, seed, epoch):
        """Returns an iterator over the batches of an epoch."""
        if self._opened > epoch:
            if has_shuffle(self._dataset):
                _warn_of_another_order(
                    epoch, "a tf.data.Dataset that shuffles cannot repeat an iteration"
                )
        elif has_shuffle(self._dataset):
            # An iterator begins all its inputs at once. But repeat and concatenate begin their
            # next input when the last has ended, so they must be read to the end.
            to_its_end = has_shuffle(
                self._dataset, within=("_RepeatDataset", "_ConcatenateDataset")
            )
            for _ in range(self._opened, epoch):
                batches = iter(self._dataset)
                if to_its_end:
                    for _ in batches:
                        pass
        self._opened = epoch + 1
        return iter(self._dataset)

    def end(self, seed):
        """Ends an epoch whose samples have all been trained on."""


class PyDatasetEpochs:
    """Epochs of a `keras.utils.PyDataset`, which `on_epoch_begin` and `on_epoch_end` change.

    Within these methods, Python's and NumPy's random numbers are a function of seed and epoch. So
    are the orders that they shuffle to.

    Args:
        py_dataset: `keras.utils.PyDataset`.

    Raises:
        ValueError: if it has no batches, or no end.

    Attributes:
        element_spec, why_not_repeatable: see `DatasetEpochs`.
    """

    why_not_repeatable = None

    def __init__(self, py_dataset):
        if py_dataset.num_batches is None:
            raise ValueError(
                "data must end, so that an epoch ends. Received: a PyDataset whose num_batches "
                "is None."
            )
        if py_dataset.num_batches == 0:
            raise ValueError("data must not be empty. Received: a PyDataset without batches.")
        self._py_dataset = py_dataset
        self._epoch = 0
        self._is_begun = False
        self.element_spec = spec_of_py_dataset(py_dataset)

    def open(self, seed, epoch):
        """Returns an iterator over an epoch's batches; its `close` stops the loading workers."""
        if self._epoch > epoch:
            if self._has_hooks():
                _warn_of_another_order(
                    epoch, "a PyDataset cannot go back to before on_epoch_begin or on_epoch_end"
                )
            self._epoch, self._is_begun = epoch, False
        while self._epoch < epoch:
            self._begin(seed)
            self.end(seed)
        self._begin(seed)
        return batches_of_py_dataset(self._py_dataset)

    def end(self, seed):
        """Ends an epoch whose samples have all been trained on."""
        if self._is_begun:
            with _random_numbers_of(seed, self._epoch, "end"):
                self._py_dataset.on_epoch_end()
            self._epoch += 1
            self._is_begun = False

    def _begin(self, seed):
        if not self._is_begun:  # otherwise the epoch is read again
            with _random_numbers_of(seed, self._epoch, "begin"):
                self._py_dataset.on_epoch_begin()
            self._is_begun = True

    def _has_hooks(self):
        base, own = keras.utils.PyDataset, type(self._py_dataset)
        return (own.on_epoch_begin, own.on_epoch_end) != (base.on_epoch_begin, base.on_epoch_end)


def _warn_of_another_order(epoch, reason):
    warnings.warn(
        f"The samples of epoch {epoch + 1} may come in another order than before: {reason}.",
        stacklevel=3,
    )


@contextlib.contextmanager
def _random_numbers_of(seed, epoch, moment):
    before = random.getstate(), np.random.get_state()
    numbers = np.random.SeedSequence([seed, epoch, moment == "end"]).generate_state(2)
    random.seed(int(numbers[0]))
    np.random.seed(numbers[1])
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
