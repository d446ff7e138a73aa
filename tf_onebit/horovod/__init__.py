"""The interface for `horovodrun` jobs: Horovod's names, and Keras 3 versions of its classes.

Import it in place of `import horovod.tensorflow.keras as hvd`:

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
        "in the source folder of tf_onebit, or install a wheel of it that was built elsewhere: "
        "`tf-onebit doctor` says how."
    ) from error

from horovod.tensorflow import (
    Adasum,
    Average,
    Max,
    Min,
    ProcessSet,
    Product,
    Sum,
    add_process_set,
    allgather_object,
    broadcast_,
    broadcast_global_variables,
    broadcast_object,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_rank_op,
    local_size,
    local_size_op,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    process_set_included_op,
    rank,
    rank_op,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    size_op,
    start_timeline,
    stop_timeline,
)

from tf_onebit.horovod import callbacks
from tf_onebit.horovod.asynchronous import AsynchronousOptimizer
from tf_onebit.horovod.batch_normalization import SyncBatchNormalization
from tf_onebit.horovod.broadcast import broadcast_variables
from tf_onebit.horovod.callbacks import (
    BestModelCheckpoint,
    BroadcastGlobalVariablesCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
)
from tf_onebit.horovod.compression import Compression
from tf_onebit.horovod.elsewhere import instead_of
from tf_onebit.horovod.job import init
from tf_onebit.horovod.joining import join
from tf_onebit.horovod.loading import load_model
from tf_onebit.horovod.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from tf_onebit.horovod.tape import DistributedGradientTape, PartialDistributedGradientTape
from tf_onebit.horovod.values import allgather, allreduce, alltoall, broadcast, reducescatter

__all__ = [
    "Adasum",
    "AsynchronousOptimizer",
    "Average",
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "Max",
    "MetricAverageCallback",
    "Min",
    "PartialDistributedGradientTape",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "load_model",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]


def __getattr__(name):
    raise instead_of(__name__, name)
