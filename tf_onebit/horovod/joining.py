"""Horovod's `join`, where nobody waits for what it cannot answer."""

import horovod.tensorflow as hvd

from tf_onebit.horovod.compression import has_compressed
from tf_onebit.training.gradient_exchange import has_exchanged


def join():
    """Waits until all workers have come here; until then answers all-reduces of others by zeros.

    That is Horovod's, for programs whose only collectives are Horovod's all-reduces. An exchange
    of gradients gathers as well, also in full precision, and Horovod fails where a worker that has
    joined is asked to.

    Returns:
        int32 scalar: the worker that came last.

    Raises:
        RuntimeError: if this worker has exchanged gradients.

    Example:
        >>> hvd.init()
        >>> int(join())
        0
    """
    if hvd.size() > 1 and (has_exchanged() or has_compressed()):
        raise RuntimeError(
            "join answers all-reduces of Horovod's own, and cannot answer an exchange of "
            "gradients. Received: a worker that has exchanged gradients with others. Leave join "
            "out, and give every worker the same number of batches."
        )
    return hvd.join()
