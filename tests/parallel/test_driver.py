"""The drivers for several processes answer every request as the lockstep driver does."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.nightly import nightly
from tests.support.ranks import engine, rank
from tf_onebit.collectives import lockstep
from tf_onebit.collectives.requests import AllGather, AllReduce, AllToAll, Broadcast, Cond

ENGINES = ["horovod", "tensorflow"]
MODES = {"eager": lambda function: function, "graph": tf.function}


@pytest.fixture(params=MODES)
def mode(request):
    """Returns a function that compiles another one, or leaves it as it is."""
    return MODES[request.param]


def numbers(rank, shape, dtype):
    # Small whole numbers: their sums have the same bits in any order.
    values = np.random.default_rng(rank).integers(-8, 8, shape)
    return tf.cast(values, dtype)


def assert_answered_as_in_lockstep(mode, generator, world_size):
    """Compares `generator(rank, world_size)` between processes and among simulated workers."""
    answer = mode(lambda: engine().run([generator(rank(), world_size)]))()[0]
    expected = lockstep.run([generator(k, world_size) for k in range(world_size)])[rank()]
    tf.nest.assert_same_structure(answer, expected)
    for mine, theirs in zip(tf.nest.flatten(answer), tf.nest.flatten(expected), strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy())


@pytest.mark.workers(2, *nightly(3), engines=ENGINES)
@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_all_to_all(mode, dtype, world_size):
    def exchange(rank, world_size):
        return (yield AllToAll(numbers(rank, [world_size, 5], dtype), "all_to_all"))

    assert_answered_as_in_lockstep(mode, exchange, world_size)


@pytest.mark.workers(2, *nightly(3), engines=ENGINES)
@pytest.mark.parametrize("rows", [lambda rank: 4, lambda rank: 3 * rank], ids=["even", "uneven"])
def test_all_gather(mode, rows, world_size):
    def exchange(rank, world_size):
        tensor = numbers(rank, [rows(rank), 2], tf.int32)
        return (yield AllGather(tensor, "all_gather", uneven=rows(0) != rows(1)))

    assert_answered_as_in_lockstep(mode, exchange, world_size)


@pytest.mark.workers(2, *nightly(3), engines=ENGINES)
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_all_reduce(mode, scale, world_size):
    def exchange(rank, world_size):
        dtypes = ["float32", "float16", "bfloat16", "float64"]
        tensors = [numbers(rank, [i, 3], dtype) for i, dtype in enumerate(dtypes, start=1)]
        return (yield AllReduce(tensors, "all_reduce", scale))

    assert_answered_as_in_lockstep(mode, exchange, world_size)


@pytest.mark.workers(2, *nightly(3), engines=ENGINES)
def test_broadcast_from_the_last_rank(mode, world_size):
    def exchange(rank, world_size):
        tensors = [numbers(rank, [3], "float32"), numbers(rank, [], "int64")]
        return (yield Broadcast(tensors, world_size - 1, "broadcast"))

    assert_answered_as_in_lockstep(mode, exchange, world_size)


@pytest.mark.workers(2, *nightly(3), engines=ENGINES)
@pytest.mark.parametrize("predicate", [True, False])
def test_cond_communicates_in_the_chosen_branch(mode, predicate, world_size):
    def total(tensor, name):
        (answer,) = yield AllReduce([tensor], name)
        return answer

    def exchange(rank, world_size):
        tensor = numbers(rank, [3], "float32")
        before = yield from total(tensor, "before")
        chosen = yield Cond(
            tf.constant(predicate),
            lambda: total(tensor + before, "then"),
            lambda: total(tensor - before, "otherwise"),
        )
        return (yield from total(chosen, "after"))

    assert_answered_as_in_lockstep(mode, exchange, world_size)


@pytest.mark.workers(2, engines=ENGINES)
def test_what_is_no_request_is_refused():
    def exchange():
        yield "all_reduce"

    with pytest.raises(TypeError, match="Expected a request.*Received: 'all_reduce'"):
        engine().run([exchange()])
