"""Several workers inside one program."""

import numpy as np
import pytest
import tensorflow as tf

from tf_onebit.collectives import lockstep
from tf_onebit.collectives.requests import AllGather, AllReduce, AllToAll, Broadcast, Cond

every_mode = pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "graph"])


def ask(make_request):
    return (yield make_request)


def answers(requests, wrap=lambda f: f):
    """Returns the answers to one request of each worker."""
    run = wrap(lambda: lockstep.run([ask(request) for request in requests]))
    return tf.nest.map_structure(lambda tensor: tensor.numpy().tolist(), run())


@every_mode
def test_all_to_all_transposes(wrap):
    requests = [
        AllToAll(tf.constant([[10 * k], [10 * k + 1], [10 * k + 2]]), "x") for k in range(3)
    ]
    assert answers(requests, wrap) == [[[0], [10], [20]], [[1], [11], [21]], [[2], [12], [22]]]


@every_mode
def test_all_gather_joins_rows_in_the_order_of_ranks(wrap):
    requests = [AllGather(tf.fill([k, 2], k), "x") for k in (2, 0, 1)]
    assert answers(requests, wrap) == [[[2, 2], [2, 2], [1, 1]]] * 3


@every_mode
def test_all_reduce_sums_and_scales(wrap):
    requests = [
        AllReduce([tf.constant([1.0, k]), tf.constant(10 * k)], "x", scale=2.0) for k in range(3)
    ]
    assert answers(requests, wrap) == [[[6.0, 6.0], 60]] * 3


@every_mode
@pytest.mark.parametrize("root", [0, 2])
def test_broadcast_takes_the_tensors_of_the_root(wrap, root):
    requests = [Broadcast([tf.constant(k), tf.constant([k, k])], root, "x") for k in range(3)]
    assert answers(requests, wrap) == [[root, [root, root]]] * 3


@every_mode
@pytest.mark.parametrize("predicate", [True, False])
def test_cond_runs_one_branch_of_all_workers(wrap, predicate):
    def total(k):
        (answer,) = yield AllReduce([tf.constant(k)], "x")
        return answer

    def negative(k):
        return -(yield from total(k))

    def requests(predicate):
        return [Cond(predicate, lambda k=k: total(k), lambda k=k: negative(k)) for k in (1, 2, 4)]

    run = wrap(lambda predicate: lockstep.run([ask(r) for r in requests(predicate)]))
    expected = 7 if predicate else -7
    assert [int(answer) for answer in run(tf.constant(predicate))] == [expected] * 3


def test_workers_ask_several_times():
    def worker(k):
        (total,) = yield AllReduce([tf.constant(k)], "first")
        gathered = yield AllGather(tf.stack([total + k]), "second")
        return gathered

    results = lockstep.run([worker(1), worker(2)])
    np.testing.assert_array_equal(results, [[4, 5]] * 2)


def test_workers_that_ask_nothing_end():
    def silent(k):
        return k
        yield

    assert lockstep.run([silent(1), silent(2)]) == [1, 2]
    assert lockstep.run([]) == []


@pytest.mark.parametrize(
    "other",
    [AllGather(tf.zeros([2]), "x"), AllReduce([tf.zeros([2])], "y"), Broadcast([], 0, "x")],
    ids=["kind", "name", "kind_and_tensors"],
)
def test_different_requests_are_refused(other):
    with pytest.raises(RuntimeError, match=r"must yield the same requests.*\('AllReduce', 'x'\)"):
        lockstep.run([ask(AllReduce([tf.zeros([2])], "x")), ask(other)])


def test_a_worker_that_ends_before_the_others_is_refused():
    def twice():
        yield AllReduce([tf.zeros([2])], "first")
        yield AllReduce([tf.zeros([2])], "second")

    with pytest.raises(RuntimeError, match="1 workers that have ended .*'second'"):
        lockstep.run([ask(AllReduce([tf.zeros([2])], "first")), twice()])


def test_what_is_no_request_is_refused():
    with pytest.raises(TypeError, match="Expected a request of tf_onebit.*Received: 5"):
        lockstep.run([ask(5)])


def test_an_error_of_a_worker_is_that_of_the_program():
    def failing():
        yield AllReduce([tf.zeros([2])], "x")
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        lockstep.run([failing(), failing()])
