"""What a process finds of a job, without bringing it about."""

import sys


def workers_of_horovod():
    """How many workers Horovod connects in this process: 1 where it is not in use.

    Horovod is not imported for it: whoever has initialized it has.
    """
    hvd = sys.modules.get("horovod.tensorflow")
    return hvd.size() if hvd is not None and hvd.is_initialized() else 1
