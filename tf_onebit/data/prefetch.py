"""Minibatches that are read in a thread, before a step asks for them."""

import collections
import concurrent.futures
import typing


class Loaded(typing.NamedTuple):
    """A minibatch that has been read.

    Attributes:
        key: which one it is.
        next_key: which one comes after it.
        tensors: what it consists of.
    """

    key: tuple
    next_key: tuple
    tensors: list


class Prefetcher:
    """Reads while a step runs what the next ones will ask for.

    A thread that wakes up, and Python's lock that changes hands, cost as much as a small minibatch.
    So several are read at once, and the next several from when the first of them is in use.

    Args:
        read: function of a key. Returns a list of `Loaded`, from the one of this key on: as many
            as are worth reading at once; none at the end. It is never called twice at a time.
    """

    def __init__(self, read):
        self._read = read
        self._ready = collections.deque()
        self._next_key = None  # of what comes after all that is ready
        self._begun = None  # `Future` of that
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
        """Begins to read what comes after all that is ready."""
        if self._begun is None:
            self._begun = self._thread.submit(self._read, *self._next_key)

    def wait(self):
        """Until nobody reads."""
        if self._begun is not None:
            concurrent.futures.wait([self._begun])

    def clear(self):
        """Forgets what has been read."""
        self.wait()
        self._ready.clear()
        self._begun = None
