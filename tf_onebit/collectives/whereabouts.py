"""Places of a job's processes in their programs, so that no process waits in vain for another.

A collective waits for all workers without a limit, and does not know why a worker does not come.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import NoReturn

import tensorflow as tf

# Default limit for which a worker between two steps waits for one that is within an epoch. That one
# can make no step alone, so only a callback can take so long.
_SECONDS_TO_WAIT = 300
# Limit if workers do nothing between a step and the meeting.
_SECONDS_TO_WAIT_AT_ONCE = 60
# Time in which even a busy board answers.
_SECONDS_TO_ANSWER = 5
_REMEDY = (
    "All workers must do the same, step by step. Give them the same number of batches and "
    "epochs. Use the same callbacks that end training (EarlyStopping) or save models on all of "
    "them."
)


class Board:
    """Board for notes between the processes of a job, apart from its collectives.

    This base class keeps no notes.
    """

    def leave(self, key: str, text: str) -> None:
        """Leaves a note for all processes. Each key is used once.

        Raises:
            ConnectionError: if the process that keeps the board has ended.
        """

    def read(self, key: str, seconds: float = 0.0) -> str | None:
        """Returns a note, or None if there is none after `seconds`.

        Raises:
            ConnectionError: if the process that keeps the board has ended.
        """
        return None

    def remove(self, key: str) -> None:
        """Removes a note that no process will read."""


class Whereabouts:
    """Place of this process in its program, exchanged with the other processes of the job.

    A *pass* is once through the data that `fit` trains on. A *meeting* is a collective between
    steps. All workers have the same meetings in the same order.

    Args:
        board: `Board`. Default: one that keeps no notes.
        rank: rank of this process.
        world_size: number of processes. A single process leaves no notes.
        members: their ranks in the whole job, for errors. Default: the same.

    Attributes:
        are_in_step: whether workers make all steps together. Workers that train apart may come
            late to a meeting, and are waited for without a limit.
        seconds: time to wait for a worker that is within a pass.
    """

    def __init__(
        self,
        board: Board | None = None,
        rank: int = 0,
        world_size: int = 1,
        members: Sequence[int] | None = None,
    ) -> None:
        self._board = board or Board()
        self._rank = rank
        self._world_size = world_size
        self._members = members or range(world_size)
        self._passes = self._fits = self._meetings = 0
        self.are_in_step = True
        self.seconds: float = _SECONDS_TO_WAIT

    def begin_pass(self) -> None:
        """Announces that this process begins a pass."""
        self._passes += 1
        self._leave(f"pass_{self._passes}_begun", "")

    def end_pass(self) -> None:
        """Announces that this process has made all steps of a pass."""
        self._leave(f"pass_{self._passes}_ended", "")

    def end_fit(self, steps: int) -> None:
        """Announces that this process has ended a `fit`, after `steps` steps in total."""
        self._fits += 1
        self._leave(f"fit_{self._fits}_ended", str(steps))

    def exit(self) -> None:
        """Announces that this process ends."""
        self._leave("exited", "")

    def meet(self, occasion: str = "", detail: str = "", at_once: bool = False) -> None:
        """Waits until the next worker has come to the same meeting, before the collective itself.

        Args:
            occasion: occasion of the meeting in a few words, the same on all workers.
            detail: words that may differ, for an error.
            at_once: whether all workers come directly after a step.

        Raises:
            RuntimeError: if the next worker does something else, or continues to train.
        """
        if self._world_size == 1 or not self.are_in_step:
            return
        self._meetings += 1
        place = f"epochs begun: {self._passes}, calls of fit ended: {self._fits}"
        if occasion:
            place = f"{occasion}, {place}"
        self._leave(f"meeting_{self._meetings}", place)
        # Each worker waits for the next one only, which in turn waits for its own next.
        other = (self._rank + 1) % self._world_size
        seconds = min(self.seconds, _SECONDS_TO_WAIT_AT_ONCE) if at_once else self.seconds
        try:
            theirs = self._wait_for(other, seconds, f"{place}, {detail}" if detail else place)
        except ConnectionError:
            return  # without a board, the collective itself succeeds or fails
        if theirs != place:
            mine, its = self._members[self._rank], self._members[other]
            self._give_up(
                f"Worker {mine} is at another place than worker {its}. Worker {mine}: {place}. "
                f"Worker {its}: {theirs}."
            )
        # All workers have come to the meeting before, so the meeting before that is over for all.
        self._board.remove(f"meeting_{self._meetings - 2}/{self._rank}")

    def _wait_for(self, other: int, seconds: float, place: str) -> str:
        began = time.monotonic()
        while (theirs := self._read(f"meeting_{self._meetings}", other, 1.0)) is None:
            if self._read(f"pass_{self._passes + 1}_begun", other) is not None:
                problem = "has begun another epoch"
            elif self._read("exited", other) is not None:
                problem = "has ended"
            elif time.monotonic() - began > seconds and not self._has_ended_pass(other):
                problem = f"is still in the middle of its epoch after {seconds:g} seconds"
            else:
                continue
            mine, its = self._members[self._rank], self._members[other]
            self._give_up(
                f"Worker {mine} waits between two steps, to synchronize, flush or save. Worker "
                f"{its} {problem}. Worker {mine} is here: {place}."
            )
        return theirs

    def _has_ended_pass(self, other: int) -> bool:
        ended = self._read(f"pass_{self._passes}_ended", other, _SECONDS_TO_ANSWER)
        return self._passes == 0 or ended is not None

    def _give_up(self, problem: str) -> NoReturn:
        self._leave("given_up", problem)
        raise RuntimeError(f"{problem} {_REMEDY}")

    @contextlib.contextmanager
    def naming_who_left(self) -> Iterator[None]:
        """Adds to errors within the context which worker has left, if one has caused them."""
        try:
            yield
        except tf.errors.OutOfRangeError:  # the end of data
            raise
        except tf.errors.OpError as error:
            who = self._who_left() if self.are_in_step else None
            if who is None:
                raise
            message = f"{who} The others cannot continue without it. {_REMEDY}\n\n{error.message}"
            raise type(error)(error.node_def, error.op, message) from error

    @contextlib.contextmanager
    def naming_place(self, place: str) -> Iterator[None]:
        """Explains errors of a collective at which groups that train apart do different things.

        Args:
            place: what this process does, in a few words.

        Raises:
            RuntimeError: if the tensors of the collective do not fit each other.
        """
        try:
            yield
        except tf.errors.FailedPreconditionError as error:
            if self.are_in_step:
                raise
            raise RuntimeError(
                "Groups that train in blocks must save and evaluate inside an epoch after the same "
                f"number of batches. Received: {place} on worker {self._members[self._rank]}, and "
                "something else on another group. Give all groups the same number of batches, or "
                "save and evaluate at the end of an epoch only: there, groups wait for each other."
            ) from error

    def _who_left(self) -> str | None:
        """Returns a sentence about a worker that has ended this `fit` or given up, or None."""
        try:
            for other in set(range(self._world_size)) - {self._rank}:
                steps = self._read(f"fit_{self._fits + 1}_ended", other)
                who = f"Worker {self._members[other]}"
                if steps is not None:
                    return f"{who} has ended fit, after {steps} steps."
                problem = self._read("given_up", other)
                if problem is not None:
                    return f"{who} has given up. {problem}"
        except ConnectionError as error:
            return f"{error}."
        return None

    def _leave(self, key: str, text: str) -> None:
        if self._world_size > 1:
            with contextlib.suppress(ConnectionError):  # a process that misses it will report it
                self._board.leave(f"{key}/{self._rank}", text)

    def _read(self, key: str, rank: int, seconds: float = 0.0) -> str | None:
        return self._board.read(f"{key}/{rank}", seconds)
