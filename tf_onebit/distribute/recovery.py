"""Collectives that work again, in a new strategy, after an error has ended them.

TensorFlow lets no collective of a process through any more once one has failed, until its server
is given the cluster anew. Workers must do that together: what a faster one has asked of a slower
one before would be lost.
"""

import contextlib
import itertools
import time

import tensorflow as tf

from tf_onebit.distribute.coordination_board import CoordinationBoard
from tf_onebit.framework_internals.tf_strategies import place_in_cluster

_strategies = itertools.count()
_POLL_SECONDS = 1.0


@contextlib.contextmanager
def recovering(cluster_resolver, seconds):
    """Context in which a strategy, other than the first, is made on all workers.

    It tells whether servers are to be given the cluster anew: the same on all workers. If so, it
    ends when all have done it.

    Args:
        cluster_resolver: `ClusterResolver`.
        seconds: how long to wait for each other.

    Raises:
        TimeoutError: if some do not come.
    """
    rank, world_size = place_in_cluster(cluster_resolver)
    others = set(range(world_size)) - {rank}
    key = f"strategy_{next(_strategies)}"
    must_recover = "ended" in _exchanged(f"{key}/collectives", _state(rank), rank, others, seconds)
    yield must_recover
    if must_recover:
        _exchanged(f"{key}/recovered", "", rank, others, seconds)


def _state(rank):
    """Tells whether collectives have "ended" in this process, or "work"."""
    with tf.device("CPU:0"):
        try:
            # Of this worker alone. Groups of strategies have positive keys.
            tf.raw_ops.CollectiveGatherV2(
                input=tf.zeros([1]),
                group_size=1,
                group_key=-1 - rank,
                instance_key=1,
                ordering_token=[],
            )
        except tf.errors.OpError:
            return "ended"
    return "work"


def _exchanged(key, note, rank, others, seconds):
    """The notes of all workers."""
    board, notes = CoordinationBoard(), [note]
    board.leave(f"{key}/{rank}", note)
    deadline = time.monotonic() + seconds
    for other in others:
        while (theirs := board.read(f"{key}/{other}", _POLL_SECONDS)) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"Worker {rank} makes a new strategy, and worker {other} has not within "
                    f"{seconds:g} seconds. Make the same strategies on all workers. If one has "
                    "ended, start the program again on all."
                )
        notes.append(theirs)
    return notes
