"""Meeting: what workers tell each other at the end of a block."""

import enum

import tensorflow as tf

_AGREE = "agree"  # the name of the gather at the end of blocks


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
    """Numbers that all processes have told each other: a flag, restarts, an end, and steps.

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

    def require_alike(self):
        """Raises ValueError if weights were assigned on some of the workers only."""
        if len(set(self._restarts)) > 1:
            raise ValueError(
                "While workers train in blocks, weights must be assigned on all of them or on "
                f"none. Received: weights assigned {self._restarts} times, by worker."
            )


class Meetings:
    """Gathers of whole numbers from all processes.

    Args:
        engine: `Engine` of the workers.
        job: `Engine` of all processes. Members of a group of processes are one worker.
        replicas: list of the first `BlockReplica` of each process here; simulations have several.
        in_threads: whether some meetings are `traced`. Then all of them are graphs, whose
            collectives Horovod matches by name. Eager ones it matches by kind. So it finds workers
            that do different things, which would otherwise wait for each other.
    """

    def __init__(self, engine, job, replicas, in_threads):
        self._engine, self._job, self._replicas = engine, job, replicas
        self._graph = tf.function(self._gather_rows, autograph=False)
        self._gather = self._graph if in_threads else self._gather_rows

    def gather(self, row_of, place, name):
        """Returns the rows of all processes: int64 array `[processes, columns]`.

        Args:
            row_of: function from a replica to the row of its worker.
            place: place of this process in its program in a few words, for an error.
            name: last part of the collective's name. Those that go on at once need unlike names.
        """
        rows = self._rows(row_of)
        return self._call(lambda: self._gather(rows, name), place)

    def meet(self, row_of, end):
        """Returns a `Meeting`. See `gather`; `end` is an `End`."""
        return Meeting(self.gather(row_of, end.place, _AGREE), self._engine.members)

    def traced(self, row_of, end):
        """Returns a function that does the same as `meet`, and makes no graph."""
        rows = self._rows(row_of)
        gather = self._graph.get_concrete_function(rows, _AGREE)
        return lambda: Meeting(self._call(lambda: gather(rows), end.place), self._engine.members)

    def _call(self, gather, place):
        with self._job.whereabouts.naming_place(place):
            return gather().numpy()

    def _rows(self, row_of):
        return tf.constant([row_of(replica) for replica in self._replicas], tf.int64)

    def _gather_rows(self, rows, name):
        pairs = zip(self._replicas, tf.unstack(rows), strict=True)
        return self._job.run([replica.gather_row(row, name) for replica, row in pairs])[0]
