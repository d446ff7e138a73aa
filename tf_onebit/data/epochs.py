"""The epochs of streams: what has to be done so that one comes in the order that it had."""

import contextlib
import random
import warnings

import numpy as np
import tensorflow as tf
from keras.src.trainers import data_adapters
from keras.src.trainers.data_adapters import data_adapter_utils

from tf_onebit.data.determinism import has_shuffle, why_not_repeatable


class DatasetEpochs:
    """The epochs of a `tf.data.Dataset` of batches.

    A `shuffle` with a seed takes another order in each iteration, and counts these. So epoch e is
    the iteration of number e, and those before it are begun, too, where they have not been.

    Args:
        dataset: `tf.data.Dataset`.

    Raises:
        ValueError: if it has no end.

    Attributes:
        element_spec: structure of the `tf.TensorSpec` of a batch.
        why_not_repeatable: what makes it come in another order when a program is started again, or
            None.
    """

    def __init__(self, dataset):
        if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise ValueError(
                "data must end, as an epoch does. Received: an infinite tf.data.Dataset. Use "
                "take(n), or do not call repeat()."
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
                    epoch, "an iteration of a tf.data.Dataset that shuffles cannot be repeated"
                )
        elif has_shuffle(self._dataset):
            # An iterator begins all its inputs at once, except for these, which begin the next
            # when the last has ended.
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
        """To be called when all samples of the epoch have been trained on."""


class PyDatasetEpochs:
    """The epochs of a `keras.utils.PyDataset`, which `on_epoch_begin` and `on_epoch_end` change.

    Python's and NumPy's random numbers within these are a function of seed and epoch: so, if they
    shuffle, are their orders.

    Args:
        py_dataset: `keras.utils.PyDataset`.

    Raises:
        ValueError: if it has no batches, or no end.

    Attributes:
        element_spec, why_not_repeatable: as of `DatasetEpochs`.
    """

    why_not_repeatable = None

    def __init__(self, py_dataset):
        if py_dataset.num_batches is None:
            raise ValueError(
                "data must end, as an epoch does. Received: a PyDataset whose num_batches is None."
            )
        if py_dataset.num_batches == 0:
            raise ValueError("data must not be empty. Received: a PyDataset without batches.")
        self._py_dataset = py_dataset
        self._epoch = 0
        self._is_begun = False
        self.element_spec = data_adapter_utils.get_tensor_spec(
            [self._adapter()._standardize_batch(py_dataset[0])]
        )

    def open(self, seed, epoch):
        """Returns an iterator over the batches of an epoch, whose `close` stops their workers."""
        if self._epoch > epoch:
            if self._has_hooks():
                _warn_of_another_order(
                    epoch, "a PyDataset cannot go back behind on_epoch_begin and on_epoch_end"
                )
            self._epoch, self._is_begun = epoch, False
        while self._epoch < epoch:
            self._begin(seed)
            self.end(seed)
        self._begin(seed)
        return self._batches()

    def end(self, seed):
        """To be called when all samples of the epoch have been trained on."""
        if self._is_begun:
            with _random_numbers_of(seed, self._epoch, "end"):
                self._py_dataset.on_epoch_end()
            self._epoch += 1
            self._is_begun = False

    def _begin(self, seed):
        if not self._is_begun:  # else the epoch is read once more
            with _random_numbers_of(seed, self._epoch, "begin"):
                self._py_dataset.on_epoch_begin()
            self._is_begun = True

    def _batches(self):
        # A queue of Keras that was stopped keeps what was in it for its next epoch.
        adapter = self._adapter()
        try:
            yield from adapter._get_iterator()
        finally:
            if adapter.enqueuer is not None:
                # What failed in batches that nobody wants does not matter.
                with contextlib.suppress(Exception):
                    adapter.enqueuer.stop()

    def _adapter(self):
        return data_adapters.PyDatasetAdapter(self._py_dataset)

    def _has_hooks(self):
        base = data_adapters.py_dataset_adapter.PyDataset
        own = type(self._py_dataset)
        return (own.on_epoch_begin, own.on_epoch_end) != (base.on_epoch_begin, base.on_epoch_end)


def _warn_of_another_order(epoch, reason):
    warnings.warn(
        f"The samples of epoch {epoch + 1} may come in another order than before, as {reason}.",
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
