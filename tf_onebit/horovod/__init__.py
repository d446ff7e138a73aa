"""tf_onebit for `horovodrun` jobs: Horovod's names, and Keras 3 versions of its classes.

Use it where a program has `import horovod.tensorflow.keras as hvd`:

    import tf_onebit
    import tf_onebit.horovod as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), exchange=tf_onebit.OneBit())
"""

try:
    import horovod.tensorflow  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"tf_onebit.horovod needs Horovod with TensorFlow, which does not load: {error}. "
        "Build Horovod 0.28.1 for the installed TensorFlow with `python tools/build_horovod.py` "
        "in the source folder of tf_onebit."
    ) from error

from horovod.tensorflow import (
    Average,
    Sum,
    allgather,
    allreduce,
    alltoall,
    broadcast,
    broadcast_variables,
    cross_rank,
    cross_size,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)

from tf_onebit.horovod.asynchronous import AsynchronousOptimizer
from tf_onebit.horovod.callbacks import BroadcastGlobalVariablesCallback, MetricAverageCallback
from tf_onebit.horovod.compression import Compression
from tf_onebit.horovod.job import init
from tf_onebit.horovod.optimizer import DistributedOptimizer
from tf_onebit.horovod.tape import DistributedGradientTape

__all__ = [
    "AsynchronousOptimizer",
    "Average",
    "BroadcastGlobalVariablesCallback",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "MetricAverageCallback",
    "Sum",
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_variables",
    "cross_rank",
    "cross_size",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
]
