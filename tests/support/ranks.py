"""Helpers for tests on a rank: knowledge of the other ranks, and of the bytes that are sent."""

import functools
import hashlib
import os
import pickle

import numpy as np
import tensorflow as tf

from tf_onebit.collectives.requests import AllGather, AllReduce, AllToAll, tap_requests


@functools.cache
def pair():
    """Returns a process set of Horovod's with two of three workers, known to jobs of that size."""
    import horovod.tensorflow as hvd

    return hvd.ProcessSet([0, 2])


@functools.cache
def engine():
    """Joins the job, on first use."""
    if "TF_CONFIG" in os.environ:
        from tf_onebit.distribute import MultiWorkerMirroredStrategy

        return MultiWorkerMirroredStrategy().extended.engine
    import horovod.tensorflow as hvd

    from tf_onebit.collectives.horovod import HorovodEngine

    if not hvd.is_initialized():  # by a program that starts Horovod itself
        sets = {"3": [pair()], "4": "dynamic", "8": "dynamic"}
        hvd.init(process_sets=sets.get(os.environ.get("HOROVOD_SIZE")))
    return HorovodEngine()


def rank():
    return engine().ranks[0]


@tf.function(input_signature=[tf.TensorSpec([None], tf.int32)], autograph=False)
def _gathered(words):
    def exchange():
        lengths = yield AllGather(tf.shape(words), "tests/lengths")
        return lengths, (yield AllGather(words, "tests/words", uneven=True))

    return engine().run([exchange()])[0]


def gather(value):
    """Returns the values of all ranks, in their order. Values may be any Python object."""
    data = pickle.dumps(value)
    words = np.frombuffer(data + bytes(-len(data) % 4), np.int32)
    lengths, words = _gathered(words)
    parts = np.split(words.numpy(), np.cumsum(lengths.numpy())[:-1])
    return [pickle.loads(part.tobytes()) for part in parts]


def from_first(function):
    """Calls a function on rank 0 alone, and returns its result on all ranks.

    So one rank computes a reference that needs no other rank. The function must not use an
    exchange: workers number their exchanges, and must have the same numbers.
    """
    return gather(function() if rank() == 0 else None)[0]


def digest(arrays):
    """Returns a digest of the exact bits of a list of arrays."""
    return hashlib.sha256(b"".join(np.asarray(array).tobytes() for array in arrays)).hexdigest()


def assert_same_bits_on_all_ranks(arrays):
    assert len(set(gather(digest(arrays)))) == 1


def count_bytes(generator, world_size, sent_bytes):
    """Forwards the requests of an exchange, and appends the bytes that each of them sends."""
    return tap_requests(
        generator, lambda request: sent_bytes.append(request_bytes(request, world_size))
    )


def request_bytes(request, world_size):
    """Returns the bytes that one worker must send, by any algorithm."""
    others = world_size - 1
    if isinstance(request, AllToAll):
        return others * size_bytes(request.tensor[0])
    if isinstance(request, AllGather):
        return others * size_bytes(request.tensor)
    if isinstance(request, AllReduce):
        return 2 * others * sum(map(size_bytes, request.tensors)) // world_size
    raise TypeError(f"An exchange is not expected to ask for {request!r}.")


def size_bytes(tensor):
    return int(tf.size(tensor)) * tensor.dtype.size
