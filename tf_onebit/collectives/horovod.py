"""Horovod's collectives: one process per worker."""

import horovod.tensorflow as hvd
import tensorflow as tf

from tf_onebit.collectives.engine import Engine
from tf_onebit.collectives.ordered_sum import ordered_sum
from tf_onebit.collectives.requests import AllGather, AllReduce, AllToAll, Broadcast, Cond


class HorovodEngine(Engine):
    """One process per worker, connected by Horovod."""

    @property
    def world_size(self):
        return hvd.size()

    @property
    def ranks(self):
        return [hvd.rank()]

    def run(self, generators):
        return [run(generator) for generator in generators]


def run(generator):
    """Runs the exchange of this worker and answers its requests with Horovod's collectives.

    Works in eager mode and while a `tf.function` is traced, where every request becomes ops of
    the graph. Horovod matches collectives by name, so a name must be in use once at a time.

    Args:
        generator: the exchange of this worker.

    Returns:
        What the generator returned.
    """
    answer = None
    while True:
        try:
            request = generator.send(answer)
        except StopIteration as stop:
            return stop.value
        answer = _answer(request)


def _answer(request):
    if isinstance(request, AllToAll):
        return _carry(hvd.alltoall, request.tensor, request.name)
    if isinstance(request, AllGather):
        return _carry(hvd.allgather, request.tensor, request.name)
    if isinstance(request, AllReduce):
        if hvd.size() > 2 and any(tensor.dtype.is_floating for tensor in request.tensors):
            # What Horovod sums together, and so in what order, depends on what is ready.
            return run(ordered_sum(request, hvd.size()))
        options = {"op": hvd.Sum, "postscale_factor": request.scale}
        return [_carry(hvd.allreduce, tensor, name, **options) for tensor, name in _named(request)]
    if isinstance(request, Broadcast):
        return [
            _carry(hvd.broadcast, tensor, name, root_rank=request.root)
            for tensor, name in _named(request)
        ]
    if isinstance(request, Cond):
        return tf.cond(
            request.predicate, lambda: run(request.then()), lambda: run(request.otherwise())
        )
    raise TypeError(f"Expected a request of tf_onebit.collectives.requests. Received: {request!r}.")


def _carry(collective, tensor, name, **options):
    # Keras numbers the scopes of optimizers, and workers need not have made equally many. Horovod
    # ignores a scope by cutting the name after its last slash.
    options |= {"name": name.replace("/", "."), "ignore_name_scope": True}
    # Horovod knows no bfloat16; float32 holds its values exactly.
    wire_dtype = tf.float32 if tensor.dtype == tf.bfloat16 else tensor.dtype
    return tf.cast(collective(tf.cast(tensor, wire_dtype), **options), tensor.dtype)


def _named(request):
    return ((tensor, f"{request.name}/{i}") for i, tensor in enumerate(request.tensors))
