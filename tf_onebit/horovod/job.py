"""The job that Horovod connects."""

import os

import horovod.tensorflow as hvd

from tf_onebit.collectives.horovod import STALL_LIMIT

_STALL_SECONDS = 600


def init(*args, **kwargs):
    """Connects the workers of a job, as `horovod.tensorflow.init`, with a limit to waiting.

    Workers that wait for each other at different places, because one has fewer batches or has
    saved alone, would do so for good. After 600 seconds they end with an error.
    Set the environment variable HOROVOD_STALL_SHUTDOWN_TIME_SECONDS to wait longer, for callbacks
    that take longer on one worker alone, or to 0 to wait for good.

    Args:
        args, kwargs: those of `horovod.tensorflow.init`.

    Example:
        >>> init()
    """
    os.environ.setdefault(STALL_LIMIT, str(_STALL_SECONDS))
    hvd.init(*args, **kwargs)
