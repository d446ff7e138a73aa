"""The number of workers that Horovod connects, where it is in use."""

import sys


def horovod_size_or_1():
    """Returns how many workers Horovod connects in this process: 1 where it is not in use.

    Horovod is not imported for it: a program that has initialized Horovod has imported it.
    """
    hvd = sys.modules.get("horovod.tensorflow")
    return hvd.size() if hvd is not None and hvd.is_initialized() else 1
