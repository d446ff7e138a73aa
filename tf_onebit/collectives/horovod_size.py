"""Number of workers that Horovod connects, if it is in use."""

import sys


def horovod_size_or_1() -> int:
    """Returns the number of workers that Horovod connects, or 1 if it is not in use.

    It does not import Horovod: a program that has initialized Horovod has imported it.
    """
    hvd = sys.modules.get("horovod.tensorflow")
    return hvd.size() if hvd is not None and hvd.is_initialized() else 1
