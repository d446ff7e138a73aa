"""Horovod's collectives: one process per worker."""

import horovod.tensorflow as hvd
import tensorflow as tf

from tf_onebit.collectives.requests import AllGather, AllReduce, AllToAll, Broadcast, Cond


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
        return hvd.alltoall(request.tensor, name=request.name)
    if isinstance(request, AllGather):
        return hvd.allgather(request.tensor, name=request.name)
    if isinstance(request, AllReduce):
        return [
            hvd.allreduce(tensor, op=hvd.Sum, postscale_factor=request.scale, name=name)
            for tensor, name in _named(request)
        ]
    if isinstance(request, Broadcast):
        return [hvd.broadcast(tensor, request.root, name=name) for tensor, name in _named(request)]
    if isinstance(request, Cond):
        return tf.cond(
            request.predicate, lambda: run(request.then()), lambda: run(request.otherwise())
        )
    raise TypeError(f"Expected a request of tf_onebit.collectives.requests. Received: {request!r}.")


def _named(request):
    return ((tensor, f"{request.name}/{i}") for i, tensor in enumerate(request.tensors))
