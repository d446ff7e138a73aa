"""Horovod's collectives: one process per worker."""

import horovod.tensorflow as hvd
import tensorflow as tf

from tf_onebit.collectives.engine import ProcessEngine
from tf_onebit.collectives.ordered_sum import ordered_sum


class HorovodEngine(ProcessEngine):
    """One process per worker, connected by Horovod.

    Horovod matches collectives by name, so a name must be in use once at a time.
    """

    @property
    def world_size(self):
        return hvd.size()

    @property
    def ranks(self):
        return [hvd.rank()]

    def _all_to_all(self, tensor, name):
        return _carry(hvd.alltoall, tensor, name)

    def _all_gather(self, request):
        return _carry(hvd.allgather, request.tensor, request.name)

    def _all_reduce(self, request):
        if hvd.size() > 2 and any(tensor.dtype.is_floating for tensor in request.tensors):
            # What Horovod sums together, and so in what order, depends on what is ready.
            return self.run_one(ordered_sum(request, hvd.size()))
        options = {"op": hvd.Sum, "postscale_factor": request.scale}
        return [
            _carry(hvd.allreduce, tensor, f"{request.name}/{i}", **options)
            for i, tensor in enumerate(request.tensors)
        ]

    def _broadcast(self, tensor, root, name):
        return _carry(hvd.broadcast, tensor, name, root_rank=root)


def run(generator):
    """`HorovodEngine().run_one(generator)`."""
    return HorovodEngine().run_one(generator)


def _carry(collective, tensor, name, **options):
    # Keras numbers the scopes of optimizers, and workers need not have made equally many. Horovod
    # ignores a scope by cutting the name after its last slash.
    options |= {"name": name.replace("/", "."), "ignore_name_scope": True}
    # Horovod knows no bfloat16; float32 holds its values exactly.
    wire_dtype = tf.float32 if tensor.dtype == tf.bfloat16 else tensor.dtype
    return tf.cast(collective(tf.cast(tensor, wire_dtype), **options), tensor.dtype)
