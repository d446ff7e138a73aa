"""Horovod's `join`, refused where it could not answer the other workers."""

import horovod.tensorflow as hvd
import tensorflow as tf

from tf_onebit._training.training_workers import has_exchanged
from tf_onebit.horovod.compression import has_compressed


def join() -> tf.Tensor:
    """Waits until all workers have called it, and answers the others' all-reduces with zeros.

    It is Horovod's function, for programs whose only collectives are Horovod's all-reduces. A
    gradient exchange also gathers, even in full precision. Horovod fails when a worker that has
    joined must gather.

    Returns:
        int32 scalar: rank of the worker that joined last.

    Raises:
        RuntimeError: if this worker has exchanged gradients.

    Example:
        >>> hvd.init()
        >>> int(join())
        0
    """
    if hvd.size() > 1 and (has_exchanged() or has_compressed()):
        raise RuntimeError(
            "join cannot answer an exchange of gradients, but only Horovod's own all-reduces. "
            "Received: a worker that has exchanged gradients with others. Leave join out, and "
            "give every worker the same number of batches."
        )
    return hvd.join()
