"""What tests on a rank share: knowledge of the other ranks, and of what is sent to them."""

import hashlib
import math

import horovod.tensorflow as hvd
import numpy as np

from tf_onebit.collectives.requests import AllGather, AllReduce, AllToAll, Cond

rank = hvd.rank


def gather(value):
    """The values of all ranks, in their order: any Python object."""
    return hvd.allgather_object(value)


def digest(arrays):
    """Names the exact bits of a list of arrays."""
    return hashlib.sha256(b"".join(np.asarray(array).tobytes() for array in arrays)).hexdigest()


def assert_same_bits_on_all_ranks(arrays):
    assert len(set(gather(digest(arrays)))) == 1


def count_bytes(generator, world_size, sent_bytes):
    """Passes on the requests of an exchange, and appends what each makes this worker send."""

    def counted(make):
        return lambda: count_bytes(make(), world_size, sent_bytes)

    def bytes_of(tensor):
        return math.prod(tensor.shape) * tensor.dtype.size

    answer, others = None, world_size - 1
    while True:
        try:
            request = generator.send(answer)
        except StopIteration as stop:
            return stop.value
        if isinstance(request, AllToAll):
            sent_bytes.append(others * bytes_of(request.tensor) // world_size)
        elif isinstance(request, AllGather):
            sent_bytes.append(others * bytes_of(request.tensor))
        elif isinstance(request, AllReduce):
            sent_bytes.append(2 * others * sum(map(bytes_of, request.tensors)) // world_size)
        elif isinstance(request, Cond):
            request = Cond(request.predicate, counted(request.then), counted(request.otherwise))
        answer = yield request
