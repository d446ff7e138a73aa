"""The pump: carries the messages of workers that do not wait for each other."""

import threading
import time

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

# How long a worker without a message lets the others wait for it to join a round: a part of a step
# of the fastest, because deltas that come steps later cost accuracy. Not a smaller part, and not
# less than this, because a round takes a millisecond of a core's time on every worker.
_PART_OF_STEP = 0.5
_LEAST_SECONDS, _MOST_SECONDS = 0.005, 0.25
# Weight of the last one in means over rounds and messages.
_LAST_WEIGHT = 0.1
# A worker with more messages than these under way waits: the network is slower than its steps, and
# would fall behind further and further.
_MOST_UNDER_WAY = 4
# How often those who wait look whether they have waited too long.
_WATCH_SECONDS = 1.0

_WORD_BYTES = 4


class Pump:
    """Gathers, in rounds and in a thread of its own, whatever messages the workers have.

    A round is one all-gather of what has been handed over since the last. Messages are read as
    often as they were handed over, once, by every other worker, and in the order of each. Rounds
    begin with the first message, and go on until all workers drain for the last time.

    Args:
        max_staleness: by how many messages a worker may be ahead of the slowest, or None.
        timeout_seconds: for how long a round may take, before the other workers are given up.
        fault_of: function of a message and the rank it came from that returns an exception if
            training cannot go on with it, or None.
        rescue: function that is called, once, at a failure, in the thread of the pump, because a
            launcher may end this process before its own step does; returns what to tell of it.
    """

    _at_work = None  # the one pump whose rounds go on

    def __init__(self, max_staleness, timeout_seconds, fault_of, rescue):
        self._max_staleness = max_staleness
        self._timeout_seconds = timeout_seconds
        self._fault_of = fault_of
        self._rescue = rescue
        self._changed = threading.Condition()
        self._thread = None
        self._fails, self._failure = False, None
        self._messages_per_second = 0.0  # of the fastest worker
        self._mean_under_way = 0.0  # when one more is handed over

    def _start(self):
        if Pump._at_work is not None:
            raise ValueError(
                "A program trains with one asynchronous optimizer at a time, which ends with fit "
                "or by optimizer.finalize_variable_values(variables). Received: a step of another "
                "one before that. Use hvd.DistributedOptimizer for models with several."
            )
        Pump._at_work = self
        self._outgoing, self._arrived = [], []
        self._counts = [0] * hvd.size()  # of messages, by rank
        self._under_way = 0  # messages of this worker that the others may not have
        self._occasions = [""] * hvd.size()  # at which workers drain
        self._finished = False
        self._latest_round = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="tf_onebit pump", daemon=True)
        self._thread.start()

    def swap(self, message):
        """Hands over a message, and returns the list of those that have arrived meanwhile.

        Waits only while this worker is too far ahead: of the slowest, or of the network.

        Raises:
            RuntimeError: if other workers are gone, when all that has come from them is read.
            Exception: what `fault_of` returned for a message of any worker, on all of them.
        """
        with self._changed:
            if self._failure is None:
                if self._thread is None:
                    self._start()
                self._outgoing.append(message)
                self._counts[hvd.rank()] += 1
                self._mean_under_way = _moved(self._mean_under_way, self._under_way)
                self._under_way += 1
                self._changed.notify_all()
                if self._fault_of(message, hvd.rank()) is not None:
                    self._wait_until(lambda: False)  # before the others have it, too
                    raise self._failure
                self._wait_until(self._may_go_on)
            return self._take()

    def drain(self, occasion, last):
        """Yields lists of messages as they arrive, until all that were handed over have.

        All workers must drain, at the same `occasion`, a few words. After the `last` no thread is
        left.

        Raises:
            RuntimeError: as `swap`.
            ValueError: on all workers, if they drain at different occasions.
        """
        with self._changed:
            if self._thread is None:
                self._start()
            self._occasions[hvd.rank()] = occasion
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
        if not last:  # at once: who goes on waits for nobody's next message
            self._start()

    def staleness(self):
        """By how many messages the slowest worker is behind this one."""
        with self._changed:
            return 0 if self._thread is None else self._staleness()

    def delay(self):
        """Until the others have a message of this worker, in its own steps: the mean of late.

        A message is as many steps under way as there are messages under way, on average.
        """
        with self._changed:
            return 0.0 if self._thread is None else self._mean_under_way

    def _may_go_on(self):
        if self._under_way > _MOST_UNDER_WAY:
            return False
        return self._max_staleness is None or self._staleness() <= self._max_staleness

    def _staleness(self):
        behind = [
            self._counts[hvd.rank()] - count
            for count, occasion in zip(self._counts, self._occasions, strict=True)
            if not occasion
        ]
        return max([0, *behind])

    def _take(self):
        """What has arrived. A failure is raised when there is no more: nothing learned is lost."""
        if self._failure is not None and not self._arrived:
            raise self._failure
        arrived, self._arrived = self._arrived, []
        return arrived

    def _wait_until(self, condition):
        """Or until there is a failure."""
        while self._failure is None and not condition():
            self._changed.wait(_WATCH_SECONDS)
            silent_seconds = time.monotonic() - self._latest_round
            if not self._finished and silent_seconds > self._timeout_seconds:
                self._fail(_lost(f"no sign of life for {silent_seconds:.0f} seconds"))

    def _fail(self, error):
        """Notes why training cannot go on: the first reason."""
        with self._changed:
            if self._fails:
                return
            self._fails = True
        try:
            saved = self._rescue()
        except Exception as problem:  # a full disk, for example: the first reason must be told
            saved = f" This worker's replica could not be saved: {problem}"
        failure = type(error)(f"{error}{saved}")
        failure.__cause__ = error.__cause__
        with self._changed:
            self._failure = failure
            self._changed.notify_all()

    def _run(self):
        try:
            while not self._finished and not self._fails:
                self._round()
        except Exception as error:  # whatever it is, the others' messages no longer come
            lost = _lost(error)
            lost.__cause__ = error
            self._fail(lost)
        finally:
            Pump._at_work = None

    def _round(self):
        with self._changed:
            self._changed.wait_for(self._joins, self._seconds_to_wait())
            mine, self._outgoing = self._outgoing, []
            occasion = self._occasions[hvd.rank()]
        arrived = list(map(_unpacked, _gather(_packed(mine, occasion))))
        with self._changed:
            self._note_rate(max(len(messages) for messages, _ in arrived))
            self._under_way -= len(mine)
            for rank, (messages, occasion) in enumerate(arrived):
                if rank != hvd.rank():
                    self._occasions[rank] = occasion
                    self._counts[rank] += len(messages)
                    self._arrived += messages
        for rank, (messages, _) in enumerate(arrived):
            for fault in filter(None, (self._fault_of(message, rank) for message in messages)):
                self._fail(fault)
        occasions = [occasion for _, occasion in arrived]
        if all(occasions) and len(set(occasions)) > 1:
            self._fail(_at_different(occasions))
        with self._changed:
            self._finished = all(occasions) and not self._fails
            self._changed.notify_all()

    def _joins(self):
        """Whether this worker has a reason to join a round at once."""
        return self._outgoing or self._occasions[hvd.rank()] or not self._may_go_on()

    def _seconds_to_wait(self):
        part_of_step = _PART_OF_STEP / max(self._messages_per_second, 1e-9)
        return min(max(part_of_step, _LEAST_SECONDS), _MOST_SECONDS)

    def _note_rate(self, messages):
        now = time.monotonic()
        rate = messages / max(now - self._latest_round, 1e-3)
        self._messages_per_second = _moved(self._messages_per_second, rate)
        self._latest_round = now


def _moved(mean, value):
    return mean + _LAST_WEIGHT * (value - mean)


def _at_different(occasions):
    places = "; ".join(f"rank {rank} at {place}" for rank, place in enumerate(occasions))
    return ValueError(
        "Asynchronous workers wait for each other at different places, and would wait forever: "
        f"{places}. Give all of them as many epochs, and callbacks that end training the same "
        "reasons to. Where they have different numbers of batches, save by epochs: "
        'BackupAndRestore(directory, save_freq="epoch").'
    )


def _lost(reason):
    return RuntimeError(
        "Another worker of this asynchronous training has ended, or does not answer any more: "
        f"{reason}. What had come from it is in the weights of this one."
    )


def _packed(messages, occasion):
    """One row of words: its length, the occasion to drain at behind its length in bytes, or
    nothing, and each message behind its shape."""
    text = occasion.encode()
    padded = text.ljust(_words_of(len(text)) * _WORD_BYTES, b"\0")
    parts = [np.array([0, len(text)], np.int32), np.frombuffer(padded, np.int32)]
    for message in messages:
        parts += [np.array(message.shape, np.int32), message.ravel()]
    words = np.concatenate(parts)
    words[0] = len(words)
    return words


def _unpacked(words):
    """The inverse of `_packed`."""
    messages, at = [], 2 + _words_of(words[1])
    occasion = words[2:at].tobytes()[: words[1]].decode()
    while at < len(words):
        shape = words[at : at + 2]
        end = at + 2 + int(np.prod(shape, dtype=np.int64))
        messages.append(words[at + 2 : end].reshape(shape))
        at = end
    return messages, occasion


def _words_of(size_bytes):
    return -(-size_bytes // _WORD_BYTES)


def _gather(words):
    """The rows of all workers: list of arrays, by rank."""
    with tf.device("CPU:0"):
        # In eager mode Horovod goes by the kind of a collective, and not by a name. Nobody else
        # uses this one, so that it meets none of the main thread's. In a function, which could
        # have a name, it might wait for the thread that waits for it in a step.
        (gathered,) = hvd.grouped_allgather([tf.constant(words)])
    gathered = gathered.numpy()
    rows = []
    while len(gathered):
        rows.append(gathered[: gathered[0]])
        gathered = gathered[gathered[0] :]
    return rows
