"""Start of a Horovod job."""

import os
from typing import Any

import horovod.tensorflow as hvd

from tf_onebit.collectives.horovod import STALL_LIMIT

_STALL_SECONDS = 600


def init(*args: Any, **kwargs: Any) -> None:
    """Connects the workers of a job like `horovod.tensorflow.init`, and limits their waiting.

    Workers may wait for each other at different places, because one has fewer batches or has saved
    alone. After 600 seconds they end with an error instead of waiting forever. Set the environment
    variable HOROVOD_STALL_SHUTDOWN_TIME_SECONDS to more for callbacks that take longer on one
    worker alone, or to 0 to wait without limit.

    Args:
        args, kwargs: see `horovod.tensorflow.init`.

    Example:
        >>> init()
    """
    os.environ.setdefault(STALL_LIMIT, str(_STALL_SECONDS))
    hvd.init(*args, **kwargs)
