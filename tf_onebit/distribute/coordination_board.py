"""Message board in the coordination service of a TensorFlow cluster."""

import contextlib
import functools

import tensorflow as tf

from tf_onebit._framework_internals.tf_strategies import read_key, remove_key, write_key
from tf_onebit.collectives.whereabouts import Board, Whereabouts

_PREFIX = "tf_onebit/whereabouts"
# For the service 0 means no limit. It may be slow: its process is ending when workers ask who left.
_LEAST_SECONDS = 0.3


class CoordinationBoard(Board):
    """Board in the first process of a cluster."""

    def leave(self, key, text):
        with _failing_as_connection():
            write_key(f"{_PREFIX}/{key}", text)

    def read(self, key, seconds=0.0):
        milliseconds = int(1000 * max(seconds, _LEAST_SECONDS))
        with _failing_as_connection():
            try:
                return read_key(f"{_PREFIX}/{key}", milliseconds)
            except (tf.errors.DeadlineExceededError, tf.errors.NotFoundError):
                return None

    def remove(self, key):
        with contextlib.suppress(tf.errors.OpError):
            remove_key(f"{_PREFIX}/{key}")


@contextlib.contextmanager
def _failing_as_connection():
    try:
        yield
    except tf.errors.OpError as error:
        gone = "Worker 0, which leads the cluster, has ended: see its output"
        raise ConnectionError(gone) from error


@functools.cache
def whereabouts_in_cluster(rank, world_size):
    """Returns the `Whereabouts` of this process, which all of its strategies share."""
    return Whereabouts(CoordinationBoard(), rank, world_size)
