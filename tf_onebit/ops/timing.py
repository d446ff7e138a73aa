"""The ops that take times in a graph."""

import tensorflow as tf

from tf_onebit.ops.library import library


def record_time(token, recorder, event):
    """Records that an event has come: in a graph, when all is there that this op waits for.

    Args:
        token: variable on the CPU, which is not looked at. TensorFlow has the ops with one token
            wait for each other, in the order of the program.
        recorder: int, at least 0: what the event is recorded by, one of this process.
        event: int, at least 0: what has come.

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


def take_times(recorder):
    """Takes from a recorder what it has recorded, in the order in which it came.

    Of what is never taken only the first 65,536 events are kept.

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
