"""Places of the processes of a job in their program, so that none waits in vain for another.

A collective waits for all workers, however long, and knows nothing of why one does not come.
"""

import contextlib
import time

import tensorflow as tf

# How long a worker between two steps waits for one that is in the midst of training, if nobody says
# so. That one can make no step alone, so what takes so long is a callback.
_SECONDS_TO_WAIT = 300
# How long, at most, where nobody does anything between a step and the meeting.
_SECONDS_TO_WAIT_AT_ONCE = 60
# How long a busy board takes to answer.
_SECONDS_TO_ANSWER = 5
_REMEDY = (
    "All workers must do the same, step by step: give them the same number of batches and epochs, "
    "and use callbacks that end training (EarlyStopping) or save models on all of them alike."
)


class Board:
    """Board for notes that the processes of a job leave for each other, beside its collectives.

    This one keeps none.
    """

    def leave(self, key, text):
        """Leaves a note for all. A key is used once.

        Raises:
            ConnectionError: if the board is gone, because the process that kept it has ended.
        """

    def read(self, key, seconds=0.0):
        """Reads a note. Returns None if there is none, also after `seconds`.

        Raises:
            ConnectionError: as `leave`.
        """
        return None

    def remove(self, key):
        """Removes a note that nobody reads any more."""


class Whereabouts:
    """Tells the other processes of a job where this one is, and finds out where they are.

    A *pass* is once through the data that `fit` trains on. A *meeting* is a collective between
    steps: all workers make the same ones, in the same order.

    Args:
        board: `Board`. Default: one that keeps nothing.
        rank: of this process.
        world_size: number of processes. One alone tells nobody.

    Attributes:
        are_in_step: whether workers make all steps together. Those that train apart come when they
            come, and are waited for.
        seconds: how long to wait for a worker that is in the midst of a pass.
    """

    def __init__(self, board=None, rank=0, world_size=1):
        self._board = board or Board()
        self._rank = rank
        self._world_size = world_size
        self._passes = self._fits = self._meetings = 0
        self.are_in_step = True
        self.seconds = _SECONDS_TO_WAIT

    def begin_pass(self):
        """Tells that this process begins a pass."""
        self._passes += 1
        self._leave(f"pass_{self._passes}_begun", "")

    def end_pass(self):
        """Tells that this process has made all of its steps of a pass."""
        self._leave(f"pass_{self._passes}_ended", "")

    def end_fit(self, steps):
        """Tells that this process has come to the end of a `fit`, after so many steps in all."""
        self._fits += 1
        self._leave(f"fit_{self._fits}_ended", str(steps))

    def meet(self, occasion="", detail="", at_once=False):
        """Waits until the next worker has come to the same meeting, before the collective itself.

        Args:
            occasion: at which all come, in a few words that are the same on all.
            detail: words that may differ, for an error.
            at_once: whether all come right after a step.

        Raises:
            RuntimeError: if that worker does something else, or trains on.
        """
        if self._world_size == 1 or not self.are_in_step:
            return
        self._meetings += 1
        place = f"epochs begun: {self._passes}, calls of fit ended: {self._fits}"
        if occasion:
            place = f"{occasion}, {place}"
        self._leave(f"meeting_{self._meetings}", place)
        # Whom the next worker waits for is its own affair.
        other = (self._rank + 1) % self._world_size
        seconds = min(self.seconds, _SECONDS_TO_WAIT_AT_ONCE) if at_once else self.seconds
        try:
            theirs = self._wait_for(other, seconds, f"{place}, {detail}" if detail else place)
        except ConnectionError:
            return  # Where the board is gone, the collective fails, or goes on without it.
        if theirs != place:
            self._give_up(
                f"Worker {self._rank} is at another place than worker {other}. Here: {place}. "
                f"There: {theirs}."
            )
        # All have made the meeting before, so the one before that is over for all.
        self._board.remove(f"meeting_{self._meetings - 2}/{self._rank}")

    def _wait_for(self, other, seconds, place):
        began = time.monotonic()
        while (theirs := self._read(f"meeting_{self._meetings}", other, 1.0)) is None:
            if self._read(f"pass_{self._passes + 1}_begun", other) is not None:
                problem = "has begun another epoch"
            elif time.monotonic() - began > seconds and not self._has_ended_pass(other):
                problem = f"is in the midst of its epoch after {seconds:g} seconds"
            else:
                continue
            self._give_up(
                f"Worker {self._rank} waits between two steps, to synchronize, flush or save, "
                f"and worker {other} {problem}. The first is here: {place}."
            )
        return theirs

    def _has_ended_pass(self, other):
        ended = self._read(f"pass_{self._passes}_ended", other, _SECONDS_TO_ANSWER)
        return self._passes == 0 or ended is not None

    def _give_up(self, problem):
        self._leave("given_up", problem)
        raise RuntimeError(f"{problem} {_REMEDY}")

    @contextlib.contextmanager
    def naming_who_left(self):
        """Context in which an error that a departure has caused says which worker has left."""
        try:
            yield
        except tf.errors.OutOfRangeError:  # the end of data
            raise
        except tf.errors.OpError as error:
            who = self._who_left() if self.are_in_step else None
            if who is None:
                raise
            message = f"{who} The others cannot train on without it. {_REMEDY}\n\n{error.message}"
            raise type(error)(error.node_def, error.op, message) from error

    def _who_left(self):
        """Which worker has ended the `fit` that this one is in, or given up: sentence, or None."""
        try:
            for other in set(range(self._world_size)) - {self._rank}:
                steps = self._read(f"fit_{self._fits + 1}_ended", other)
                if steps is not None:
                    return f"Worker {other} has ended fit, after {steps} steps."
                problem = self._read("given_up", other)
                if problem is not None:
                    return f"Worker {other} has given up. {problem}"
        except ConnectionError as error:
            return f"{error}."
        return None

    def _leave(self, key, text):
        if self._world_size > 1:
            with contextlib.suppress(ConnectionError):  # who reads in vain will tell
                self._board.leave(f"{key}/{self._rank}", text)

    def _read(self, key, rank, seconds=0.0):
        return self._board.read(f"{key}/{rank}", seconds)
