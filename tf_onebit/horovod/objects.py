"""Python objects of all workers."""

import horovod.tensorflow as hvd

# Horovod names messages after an object's type, and would wait for good where that differs between
# workers, as between an object and the None that others pass.
_NAME = "tf_onebit_object"


def broadcast_object(obj, root_rank=0, session=None, name=None, process_set=hvd.global_process_set):
    """Sends a Python object from one worker to all.

    Args:
        obj: what `cloudpickle` can save. On other workers than `root_rank` anything, as None.
        root_rank: the worker whose object is sent.
        session: of TensorFlow 1, without use here.
        name: of the messages, the same on all workers. Default: one for all objects.
        process_set: `ProcessSet` of the workers that take part.

    Returns:
        The object of `root_rank`.

    Example:
        >>> hvd.init()
        >>> broadcast_object({"epoch": 3})
        {'epoch': 3}
    """
    return hvd.broadcast_object(obj, root_rank, session, name or _NAME, process_set)


def allgather_object(obj, session=None, name=None, process_set=hvd.global_process_set):
    """Collects a Python object of every worker.

    Args:
        obj: what `cloudpickle` can save.
        session: of TensorFlow 1, without use here.
        name: of the messages, the same on all workers. Default: one for all objects.
        process_set: `ProcessSet` of the workers that take part.

    Returns:
        List of the objects, in the order of ranks.

    Example:
        >>> hvd.init()
        >>> allgather_object("a")
        ['a']
    """
    return hvd.allgather_object(obj, session, name or _NAME, process_set)
