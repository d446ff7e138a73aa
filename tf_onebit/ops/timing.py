"""Ops that record times in a graph."""

import tensorflow as tf

from tf_onebit.ops.library import library


def record_time(token: tf.Variable, recorder: int, event: int) -> tf.Operation | None:
    """Records the time of an event.

    In a graph it is the time when all that this op waits for is ready.

    Args:
        token: variable on the CPU, whose value is not read. TensorFlow runs the ops with one
            token one after another, in program order.
        recorder: int, at least 0: number of a recorder in this process.
        event: int, at least 0: number of the event.

    Returns:
        The operation, in a graph.

    Example:
        >>> token = tf.Variable(0.0)
        >>> record_time(token, recorder=7_000_000, event=3)
        >>> events, _ = take_times(recorder=7_000_000)
        >>> events.numpy().tolist()
        [3]
    """
    with tf.device("CPU:0"):
        return library.tf_onebit_record_time(token=token.handle, recorder=recorder, event=event)


def take_times(recorder: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Removes all events from a recorder, and returns them in the order of recording.

    A recorder keeps only the first 65,536 events that have not been taken.

    Args:
        recorder: as in `record_time`.

    Returns:
        `events`, int32 `[number]`, and `times`, int64 `[number]`, in nanoseconds of
        `time.monotonic_ns`.

    Example:
        >>> events, times = take_times(recorder=7_000_001)
        >>> events.shape, times.shape
        (TensorShape([0]), TensorShape([0]))
    """
    with tf.device("CPU:0"):
        return library.tf_onebit_take_times(recorder=recorder)
