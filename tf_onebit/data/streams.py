"""Samples that can only be read one after another."""

import collections

import tensorflow as tf
from keras.src.trainers import data_adapters
from keras.src.trainers.data_adapters import data_adapter_utils


class Stream:
    """Samples of batches, in the order in which these come.

    What has been read ahead is kept, until what comes before it is no longer needed.

    Args:
        open_epoch: function. Returns an iterator over the batches of one epoch.
        element_spec: structure of the `tf.TensorSpec` of a batch.
    """

    samples = None

    def __init__(self, open_epoch, element_spec):
        for spec in tf.nest.flatten(element_spec):
            if not isinstance(spec, tf.TensorSpec) or not spec.shape.rank:
                raise ValueError(
                    "Batches must be structures of dense tensors with samples along their first "
                    f"axis. Received: batches of {element_spec}."
                )
        self._open_epoch = open_epoch
        self.element_spec = tf.nest.map_structure(
            lambda spec: tf.TensorSpec([None, *spec.shape[1:]], spec.dtype), element_spec
        )
        self._epoch = None

    def seek(self, seed, epoch, start):
        """Makes ready to read samples of an epoch from `start` on."""
        if epoch != self._epoch or start < self._begin:
            self._batches = self._open_epoch()
            self._kept = collections.deque()  # (number of the first sample, leaves)
            self._begin = self._end = 0
            self._is_open = True
            self._epoch = epoch
        while self._is_open and self._end < start:
            self._pull()
            self._forget(start)
        self._forget(start)

    def available(self, stop):
        """How many of the epoch's first `stop` samples there are."""
        while self._is_open and self._end < stop:
            self._pull()
        return min(stop, self._end)

    def read(self, start, stop):
        """Samples `start` to `stop` of the epoch: the tensors of a batch, in a list."""
        pieces = []
        with tf.device("CPU"):
            for begin, leaves in self._kept:
                length = len(leaves[0])
                low, high = max(start - begin, 0), min(stop - begin, length)
                if low < high:
                    whole = (low, high) == (0, length)
                    pieces.append(leaves if whole else [leaf[low:high] for leaf in leaves])
            if not pieces:
                pieces = [[leaf[:0] for leaf in self._kept[0][1]]]
            columns = zip(*pieces, strict=True)
            return [c[0] if len(c) == 1 else tf.concat(c, axis=0) for c in columns]

    def _pull(self):
        try:
            batch = next(self._batches)
        except StopIteration:
            self._is_open = False
            return
        except BaseException:
            # A generator that has failed says next time that it has ended.
            self._epoch = None
            raise
        tf.nest.assert_same_structure(batch, self.element_spec)
        with tf.device("CPU"):
            leaves = [
                tf.convert_to_tensor(leaf, spec.dtype)
                for leaf, spec in zip(
                    tf.nest.flatten(batch), tf.nest.flatten(self.element_spec), strict=True
                )
            ]
        lengths = {len(leaf) for leaf in leaves}
        if len(lengths) != 1:
            raise ValueError(
                "All tensors of a batch must have the same number of samples. Received: a batch "
                f"of tensors with {sorted(lengths)}."
            )
        if lengths != {0}:
            self._kept.append((self._end, leaves))
            self._end += lengths.pop()

    def _forget(self, start):
        self._begin = start
        while len(self._kept) > 1 and self._kept[1][0] <= start:
            self._kept.popleft()


def opened_dataset(dataset):
    """How to open a `tf.data.Dataset` of batches, and what these are: arguments of `Stream`."""
    if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise ValueError(
            "data must end, as an epoch does. Received: an infinite tf.data.Dataset. Use take(n), "
            "or do not call repeat()."
        )
    return (lambda: iter(dataset)), dataset.element_spec


def opened_py_dataset(py_dataset):
    """How to open a `keras.utils.PyDataset`, and what its batches are: arguments of `Stream`."""
    if py_dataset.num_batches is None:
        raise ValueError(
            "data must end, as an epoch does. Received: a PyDataset whose num_batches is None."
        )
    adapter = data_adapters.PyDatasetAdapter(py_dataset)
    element_spec = data_adapter_utils.get_tensor_spec([adapter._standardize_batch(py_dataset[0])])

    def open_epoch():
        if adapter._within_epoch:  # it is read anew
            adapter.on_epoch_end()
        adapter.on_epoch_begin()
        yield from adapter._get_iterator()
        adapter.on_epoch_end()

    return open_epoch, element_spec
