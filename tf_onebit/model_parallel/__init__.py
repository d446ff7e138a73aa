"""Model parallelism: groups of processes, or of devices, that hold one Keras model together.

Example:
    hvd.init(process_sets="dynamic")
    groups = model_parallel.Groups(2)
    model = model_parallel.split(make_model(), groups)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(), exchange=tf_onebit.OneBit()))
"""

from tf_onebit.model_parallel.groups import Groups
from tf_onebit.model_parallel.splitting import describe, merge, split

__all__ = ["Groups", "describe", "merge", "split"]
