"""Samples that can only be read one after another."""

import bisect

import tensorflow as tf


class Stream:
    """Samples of batches, in the order of the batches.

    Batches that were read ahead are kept until the samples before them are no longer needed.

    Args:
        epochs: `DatasetEpochs` or `PyDatasetEpochs`.

    Raises:
        ValueError: if batches are not dense tensors with samples along their first axis.
    """

    samples = None

    def __init__(self, epochs):
        element_spec = epochs.element_spec
        for spec in tf.nest.flatten(element_spec):
            if not isinstance(spec, tf.TensorSpec) or not spec.shape.rank:
                raise ValueError(
                    "Batches must be structures of dense tensors with samples along their first "
                    f"axis. Received: batches of {element_spec}."
                )
        self._epochs = epochs
        self._batches = None
        self.element_spec = tf.nest.map_structure(
            lambda spec: tf.TensorSpec([None, *spec.shape[1:]], spec.dtype), element_spec
        )
        self._epoch = None

    @property
    def why_not_repeatable(self):
        return self._epochs.why_not_repeatable

    def seek(self, seed, epoch, start):
        """Prepares to read samples of an epoch from `start` on."""
        if epoch != self._epoch or start < self._begin:
            self._close()
            self._batches = self._epochs.open(seed, epoch)
            self._begins = []  # number of the first sample of each kept batch
            self._kept = []  # leaves of each kept batch
            self._begin = self._end = 0
            self._is_open = True
            self._epoch = epoch
        while self._is_open and self._end < start:
            self._pull()
            self._forget(start)
        self._forget(start)

    def end_epoch(self, seed):
        """Ends an epoch whose samples have all been trained on."""
        self._close()
        self._epochs.end(seed)

    def _close(self):
        """Stops workers that read ahead."""
        self._epoch = None
        if hasattr(self._batches, "close"):
            self._batches.close()
        self._batches = None

    def available(self, stop):
        """Returns how many of the epoch's first `stop` samples exist."""
        while self._is_open and self._end < stop:
            self._pull()
        return min(stop, self._end)

    def at_once(self, samples):
        """Returns how many batches of this many samples are worth reading at once."""
        return 1  # so that the next step waits for its own batch only

    def read(self, ranges):
        """Returns, for each range `(start, stop)` of the epoch's samples, a list of tensors."""
        return [self._range(start, stop) for start, stop in ranges]

    def _range(self, start, stop):
        pieces = []
        with tf.device("CPU"):
            first = max(bisect.bisect_right(self._begins, start) - 1, 0)
            last = bisect.bisect_left(self._begins, stop)
            for i in range(first, last):
                begin, leaves = self._begins[i], self._kept[i]
                length = len(leaves[0])
                low, high = max(start - begin, 0), min(stop - begin, length)
                if low < high:
                    whole = (low, high) == (0, length)
                    pieces.append(leaves if whole else [leaf[low:high] for leaf in leaves])
            if not pieces:
                pieces = [[leaf[:0] for leaf in self._kept[0]]]
            for piece in pieces[1:]:
                if any(a.shape[1:] != b.shape[1:] for a, b in zip(piece, pieces[0], strict=True)):
                    raise _unlike(pieces[0], piece)
            columns = zip(*pieces, strict=True)
            return [c[0] if len(c) == 1 else tf.concat(c, axis=0) for c in columns]

    def _pull(self):
        try:
            leaves = self._leaves_of_next()
            if leaves is None:
                self._is_open = False
            elif len(leaves[0]) > 0:
                self._begins.append(self._end)
                self._kept.append(leaves)
                self._end += len(leaves[0])
        except BaseException:
            # Open the epoch again next time: a failed generator then looks like a finished one,
            # and an interrupt may lose a batch.
            self._epoch = None
            raise

    def _leaves_of_next(self):
        batch = next(self._batches, None)
        if batch is None:
            return None
        tf.nest.assert_same_structure(batch, self.element_spec)
        with tf.device("CPU"):
            specs = tf.nest.flatten(self.element_spec)
            leaves = [
                tf.convert_to_tensor(leaf, spec.dtype)
                for leaf, spec in zip(tf.nest.flatten(batch), specs, strict=True)
            ]
        if not all(spec.is_compatible_with(leaf) for spec, leaf in zip(specs, leaves, strict=True)):
            raise _unlike(specs, leaves)
        lengths = {len(leaf) for leaf in leaves}
        if len(lengths) != 1:
            raise ValueError(
                "All tensors of a batch must have the same number of samples. Received: a batch "
                f"of tensors with {sorted(lengths)}."
            )
        return leaves

    def _forget(self, start):
        self._begin = start
        past = max(bisect.bisect_right(self._begins, start) - 1, 0)
        del self._begins[:past], self._kept[:past]


def _unlike(expected, leaves):
    return ValueError(
        "All samples must have the same shape, because they are put together into other batches. "
        f"Received: a batch of shapes {[tuple(leaf.shape) for leaf in leaves]} after shapes "
        f"{[tuple(leaf.shape) for leaf in expected]}. Pad them to one length."
    )
