"""The pump, which carries the messages of workers that do not wait for each other."""

import threading
import time

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

# The longest time that a worker without a message delays a round: a part of the fastest worker's
# step, within bounds. More would cost accuracy, because deltas would arrive steps later. Less would
# cost time, because every round takes a millisecond of a core's time on every worker.
_PART_OF_STEP = 0.5
_LEAST_SECONDS, _MOST_SECONDS = 0.005, 0.25
# Weight of the newest value in moving means over rounds and messages.
_LAST_WEIGHT = 0.1
# A worker waits while it has more messages than these under way. Its network is slower than its
# steps, and would fall behind further and further.
_MOST_UNDER_WAY = 4
# How often a waiting thread checks whether it has waited too long.
_WATCH_SECONDS = 1.0

_WORD_BYTES = 4


class Pump:
    """Background thread that gathers the messages of all workers in rounds.

    A round is one all-gather of the messages handed over since the last round. Every other worker
    reads each message exactly once, and the messages of one worker in their order. Rounds begin
    with the first message, and go on until all workers drain for the last time.

    Args:
        max_staleness: number of messages by which a worker may be ahead of the slowest, or None.
        timeout_seconds: longest time of a round, after which the other workers are given up.
        fault_of: function of a message and its sender's rank. Returns an exception if training
            cannot go on with the message, else None.
        rescue: function that the pump's thread calls once, at a failure, because a launcher may
            end this process before its own step does. Returns a text for the error message.
    """

    _at_work = None  # the one running pump

    def __init__(self, max_staleness, timeout_seconds, fault_of, rescue):
        self._max_staleness = max_staleness
        self._timeout_seconds = timeout_seconds
        self._fault_of = fault_of
        self._rescue = rescue
        self._changed = threading.Condition()
        self._thread = None
        self._fails, self._failure = False, None
        self._messages_per_second = 0.0  # of the fastest worker
        self._mean_under_way = 0.0  # taken whenever one more is handed over

    def _start(self):
        if Pump._at_work is not None:
            raise ValueError(
                "A program can train with only one asynchronous optimizer at a time. Received: a "
                "step of a second one. The first ends with fit, or with "
                "optimizer.finalize_variable_values(variables). Use hvd.DistributedOptimizer for "
                "models with several."
            )
        Pump._at_work = self
        self._outgoing, self._arrived = [], []
        self._counts = [0] * hvd.size()  # numbers of messages, by rank
        self._under_way = 0  # messages of this worker that the others may not have
        self._occasions = [""] * hvd.size()  # the places where workers drain, by rank
        self._finished = False
        self._latest_round = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="tf_onebit pump", daemon=True)
        self._thread.start()

    def swap(self, message):
        """Hands over a message, and returns the list of messages that have arrived meanwhile.

        Waits only while this worker is too far ahead of the slowest worker or of the network.

        Raises:
            RuntimeError: if other workers are gone, once all their messages are read.
            Exception: the result of `fault_of` for a message of any worker, on all workers.
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
                    self._wait_until(lambda: False)  # until the others have it, too
                    raise self._failure
                self._wait_until(self._may_go_on)
            return self._take()

    def drain(self, occasion, last):
        """Yields lists of messages as they arrive, until all have arrived.

        All workers must drain at the same `occasion`. The thread ends if this drain is the `last`.

        Args:
            occasion: short text that names the place in the program.
            last: whether the pump stops afterwards.

        Raises:
            RuntimeError: see `swap`.
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
        if not last:  # at once, so that no worker waits for another's next message
            self._start()

    def staleness(self):
        """Returns the number of messages by which the slowest worker is behind this one."""
        with self._changed:
            return 0 if self._thread is None else self._staleness()

    def delay(self):
        """Returns the recent mean of the time that a message takes to the others, in steps.

        On average a message is under way for as many steps as there are messages under way.
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
        """Returns the messages that have arrived, or raises the failure if there are none.

        The order matters: arrived messages are applied before a failure ends training.
        """
        if self._failure is not None and not self._arrived:
            raise self._failure
        arrived, self._arrived = self._arrived, []
        return arrived

    def _wait_until(self, condition):
        """Waits until a condition holds, or until there is a failure."""
        while self._failure is None and not condition():
            self._changed.wait(_WATCH_SECONDS)
            silent_seconds = time.monotonic() - self._latest_round
            if not self._finished and silent_seconds > self._timeout_seconds:
                self._fail(_lost(f"no sign of life for {silent_seconds:.0f} seconds"))

    def _fail(self, error):
        """Records why training cannot go on. Only the first reason counts."""
        with self._changed:
            if self._fails:
                return
            self._fails = True
        try:
            saved = self._rescue()
        except Exception as problem:  # such as a full disk: the first reason must still be told
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
        except Exception as error:  # after any error the others' messages no longer arrive
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
        """Tells whether this worker has a reason to join a round at once."""
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
        f"Asynchronous workers wait for each other at different places: {places}. Give all of "
        "them the same number of epochs. Callbacks that end training must do so on all workers. "
        "If workers have different numbers of batches, save after epochs: "
        'BackupAndRestore(directory, save_freq="epoch").'
    )


def _lost(reason):
    return RuntimeError(
        "Another worker of this asynchronous training has ended, or does not answer any more: "
        f"{reason}. The deltas that arrived before are in the weights of this worker."
    )


def _packed(messages, occasion):
    """Packs messages and an occasion into one row of words.

    The row holds its own length in words, the occasion's length in bytes, the occasion, and for
    each message its shape and its words. The occasion is empty while a worker does not drain.
    """
    text = occasion.encode()
    padded = text.ljust(_words_of(len(text)) * _WORD_BYTES, b"\0")
    parts = [np.array([0, len(text)], np.int32), np.frombuffer(padded, np.int32)]
    for message in messages:
        parts += [np.array(message.shape, np.int32), message.ravel()]
    words = np.concatenate(parts)
    words[0] = len(words)
    return words


def _unpacked(words):
    """Inverts `_packed`: returns the list of messages and the occasion."""
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
    """Returns the rows of all workers: list of arrays, by rank."""
    with tf.device("CPU:0"):
        # In eager mode Horovod matches collectives by kind, not by name. The main thread uses no
        # grouped all-gather, so this one cannot be matched with one of its collectives. A
        # `tf.function` would give it a name, but might wait for the main thread, whose step waits
        # for the pump.
        (gathered,) = hvd.grouped_allgather([tf.constant(words)])
    gathered = gathered.numpy()
    rows = []
    while len(gathered):
        rows.append(gathered[: gathered[0]])
        gathered = gathered[gathered[0] :]
    return rows
