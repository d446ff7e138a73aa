"""Recovery of collectives, in a new strategy, after an error has ended them.

Once a collective has failed, TensorFlow fails all later ones of the process until its server gets
the cluster again. Workers must do that together, because a slower worker's server would lose the
requests that a faster worker has sent it before.
"""

import contextlib
import itertools
import time

import tensorflow as tf

from tf_onebit._framework_internals.tf_strategies import place_in_cluster
from tf_onebit.distribute.coordination_board import CoordinationBoard

_strategies = itertools.count()
_POLL_SECONDS = 1.0


@contextlib.contextmanager
def recovering(cluster_resolver, seconds):
    """Guards the making of a second or later strategy, on all workers.

    The context's value tells whether servers must get the cluster again; it is the same on all
    workers. If so, the context ends when all servers have it.

    Args:
        cluster_resolver: `ClusterResolver`.
        seconds: longest wait for the other workers.

    Raises:
        TimeoutError: if some workers make no strategy in time.
    """
    rank, world_size = place_in_cluster(cluster_resolver)
    others = set(range(world_size)) - {rank}
    key = f"strategy_{next(_strategies)}"
    must_recover = "ended" in _exchanged(f"{key}/collectives", _state(rank), rank, others, seconds)
    yield must_recover
    if must_recover:
        _exchanged(f"{key}/recovered", "", rank, others, seconds)


def _state(rank):
    """Returns "ended" if collectives fail in this process, else "work"."""
    with tf.device("CPU:0"):
        try:
            # A group of this worker alone. Groups of strategies have positive keys.
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
    """Sends a note to all workers, and returns the notes of all: list of strings."""
    board, notes = CoordinationBoard(), [note]
    board.leave(f"{key}/{rank}", note)
    deadline = time.monotonic() + seconds
    for other in others:
        while (theirs := board.read(f"{key}/{other}", _POLL_SECONDS)) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"Worker {rank} makes a new strategy, and worker {other} has not made one "
                    f"within {seconds:g} seconds. Make the same strategies on all workers. If a "
                    "worker has ended, start the program again on all workers."
                )
        notes.append(theirs)
    return notes
