"""Meeting: what workers tell each other at the end of a block."""

import enum


class End(enum.IntEnum):
    """The end that a worker has reached when it meets the others."""

    BLOCK = 0
    EPOCH = 1
    TRAINING = 2

    @property
    def place(self):
        """Place of a worker in its program, in a few words, for errors."""
        return f"the end of {('a block', 'an epoch', 'training')[self]}"


class Meeting:
    """What all processes have told each other: rows of a flag, restarts, an end, and steps.

    Args:
        rows: int64 array `[processes, columns]`.
        members: sequence of the processes that stand for a worker each.

    Attributes:
        rows: see above.
        flags: list by process. 0, or 1 + the index of the first variable that is not finite.
        end: `End`: what has ended on all workers.
        by_optimizer: list of lists: number of steps of each optimizer, by worker, since the
            meeting before.
    """

    def __init__(self, rows, members):
        self.rows, self._members = rows, list(members)
        self.flags, self._restarts, *_ = rows.T.tolist()
        _, _, ends, *self.by_optimizer = rows[self._members].T.tolist()
        self.end = End(min(ends))

    @property
    def ends_all(self):
        """True if all workers have ended their epoch."""
        return self.end >= End.EPOCH

    @property
    def is_alike(self):
        """True if weights were assigned as often on all workers."""
        return len(set(self._restarts)) == 1

    def require_alike(self):
        """Raises ValueError if weights were assigned on some of the workers only."""
        if not self.is_alike:
            raise ValueError(
                "While workers train in blocks, weights must be assigned on all of them or on "
                f"none. Received: weights assigned {self._restarts} times, by worker."
            )
