"""Minibatches that a thread reads before a step asks for them."""

import collections
import concurrent.futures
import typing


class Loaded(typing.NamedTuple):
    """A minibatch that has been read.

    Attributes:
        key: key of this minibatch.
        next_key: key of the next minibatch.
        tensors: list of its tensors.
    """

    key: tuple
    next_key: tuple
    tensors: list


class Prefetcher:
    """Reader that loads the minibatches of the next steps while a step runs.

    Waking a thread and passing Python's lock cost as much as reading a small minibatch. So several
    minibatches are read at once. Reading of the next several begins when the first is in use.

    Args:
        read: function of a key that returns a list of `Loaded`, from this key on: as many as are
            worth reading at once, or an empty list at the end. Calls never overlap.
    """

    def __init__(self, read):
        self._read = read
        self._ready = collections.deque()
        self._next_key = None  # of the minibatch after all that are ready
        self._begun = None  # `Future` of the minibatches from there on
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "ResizableBatches")

    def get(self, key):
        """Returns the minibatch of a key, or None at the end."""
        if not self._ready or self._ready[0].key != key:
            self.wait()
            begun, self._begun = self._begun, None
            is_it = begun is not None and key == self._next_key
            self._ready = collections.deque(begun.result() if is_it else self._read(*key))
            if self._ready:
                self._next_key = self._ready[-1].next_key
        return self._ready.popleft() if self._ready else None

    def begin(self):
        """Begins to read the minibatches after all that are ready."""
        if self._begun is None:
            self._begun = self._thread.submit(self._read, *self._next_key)

    def wait(self):
        """Waits until no read is under way."""
        if self._begun is not None:
            concurrent.futures.wait([self._begun])

    def clear(self):
        """Discards all minibatches that have been read."""
        self.wait()
        self._ready.clear()
        self._begun = None
