"""The pump: carries the messages of workers that do not wait for each other."""

import threading
import time

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

# How long a worker without a message lets the others wait for it to join a round. A round takes a
# millisecond of a core's time.
_ROUND_SECONDS = 0.05
# How often those who wait look whether they have waited too long.
_WATCH_SECONDS = 1.0


class Pump:
    """Gathers, in rounds and in a thread of its own, whatever messages the workers have.

    A round is one all-gather of what has been handed over since the last. Messages are read as
    often as they were handed over, once, by every other worker, and in the order of each. Rounds go
    on until all workers drain.

    Args:
        name: of its collective; unique in a job.
        max_staleness: by how many messages a worker may be ahead of the slowest, or None.
        timeout_seconds: for how long a round may take, before the other workers are given up.
        fault_of: function of a message and the rank it came from that returns an exception if
            training cannot go on with it, or None.
        rescue: function that is called, once, at a failure, in the thread of the pump, because a
            launcher may end this process before its own step does; returns what to tell of it.
    """

    def __init__(self, name, max_staleness, timeout_seconds, fault_of, rescue):
        self._name = name
        self._max_staleness = max_staleness
        self._timeout_seconds = timeout_seconds
        self._fault_of = fault_of
        self._rescue = rescue
        self._changed = threading.Condition()
        self._thread = None
        self._failure = None

    def _start(self):
        self._outgoing, self._arrived = [], []
        self._counts = [0] * hvd.size()  # of messages, by rank
        self._draining, self._finished = [False] * hvd.size(), False
        self._latest_round = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="tf_onebit pump", daemon=True)
        self._thread.start()

    def swap(self, message):
        """Hands over a message, and returns the list of those that have arrived meanwhile.

        Waits only while this worker is too far ahead.

        Raises:
            RuntimeError: if other workers are gone.
            Exception: what `fault_of` returned for a message of any worker, on all of them.
        """
        with self._changed:
            self._raise_failure()
            if self._thread is None:
                self._start()
            self._outgoing.append(message)
            self._counts[hvd.rank()] += 1
            self._changed.notify_all()
            # A fault is raised as soon as the others have it, too.
            faulty = self._fault_of(message, hvd.rank()) is not None
            self._wait_until(lambda: not faulty and self._may_go_on())
            return self._take()

    def drain(self):
        """Yields lists of messages as they arrive, until all that were handed over have.

        All workers must drain. No thread is left then.

        Raises:
            RuntimeError: as `swap`.
        """
        with self._changed:
            self._raise_failure()
            if self._thread is None:
                self._start()
            self._draining[hvd.rank()] = True
            self._changed.notify_all()
        finished = False
        while not finished:
            with self._changed:
                self._wait_until(lambda: self._finished or self._arrived)
                finished = self._finished
                arrived = self._take()
            yield arrived
        self._thread.join()
        self._thread = None

    def staleness(self):
        """By how many messages the slowest worker is behind this one."""
        with self._changed:
            return 0 if self._thread is None else self._staleness()

    def _may_go_on(self):
        return self._max_staleness is None or self._staleness() <= self._max_staleness

    def _staleness(self):
        behind = [
            self._counts[hvd.rank()] - count
            for count, draining in zip(self._counts, self._draining, strict=True)
            if not draining
        ]
        return max([0, *behind])

    def _take(self):
        arrived, self._arrived = self._arrived, []
        return arrived

    def _wait_until(self, condition):
        while not condition():
            self._changed.wait(_WATCH_SECONDS)
            self._raise_failure()

    def _raise_failure(self):
        if self._failure is not None:
            raise self._failure
        if self._thread is not None and not self._finished:
            silent_seconds = time.monotonic() - self._latest_round
            if silent_seconds > self._timeout_seconds:
                self._fail(_lost(f"no sign of life for {silent_seconds:.0f} seconds"))
                raise self._failure

    def _fail(self, error):
        """Notes why training cannot go on: the first reason."""
        if self._failure is None:
            error = type(error)(f"{error}{self._rescue()}")
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _run(self):
        try:
            while not self._finished and self._failure is None:
                self._round()
        except Exception as error:  # whatever it is, the others' messages no longer come
            self._fail(_lost(error))

    def _round(self):
        with self._changed:
            ready = lambda: self._outgoing or self._draining[hvd.rank()]  # noqa: E731
            self._changed.wait_for(ready, _ROUND_SECONDS)
            mine, self._outgoing = self._outgoing, []
            draining = self._draining[hvd.rank()]
        rows = _gather(_packed(mine, draining), self._name)
        arrived = list(map(_unpacked, rows))
        with self._changed:
            self._latest_round = time.monotonic()
            for rank, (messages, drains) in enumerate(arrived):
                self._draining[rank] |= drains
                if rank != hvd.rank():
                    self._counts[rank] += len(messages)
                    self._arrived += messages
            self._finished = all(drains for _, drains in arrived)
            self._changed.notify_all()
        for rank, (messages, _) in enumerate(arrived):
            for fault in filter(None, (self._fault_of(message, rank) for message in messages)):
                self._fail(fault)


def _lost(reason):
    return RuntimeError(
        "Another worker of this asynchronous training has ended, or does not answer any more: "
        f"{reason}. What it had sent is in the weights of this one."
    )


def _packed(messages, draining):
    """One row of words: its length, whether the worker drains, each message behind its shape."""
    parts = [np.array([0, draining], np.int32)]
    for message in messages:
        parts += [np.array(message.shape, np.int32), message.ravel()]
    words = np.concatenate(parts)
    words[0] = len(words)
    return words


def _unpacked(words):
    """The inverse of `_packed`."""
    messages, at = [], 2
    while at < len(words):
        shape = words[at : at + 2]
        end = at + 2 + int(np.prod(shape, dtype=np.int64))
        messages.append(words[at + 2 : end].reshape(shape))
        at = end
    return messages, bool(words[1])


def _gather(words, name):
    """The rows of all workers: list of arrays, by rank."""
    with tf.device("CPU:0"):
        gathered = hvd.allgather(tf.constant(words), name=name).numpy()
    rows = []
    while len(gathered):
        rows.append(gathered[: gathered[0]])
        gathered = gathered[gathered[0] :]
    return rows
