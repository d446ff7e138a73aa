"""Bucketed: the way of each gradient, their order, and the effect of a bad one."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.gradients import build_workers, exchange, gradients_of, specs_of
from tests.support.nightly import nightly
from tf_onebit import FullPrecision, OneBit, Threshold, WarmStart
from tf_onebit.collectives.requests import AllGather, AllToAll
from tf_onebit.exchanges import Bucketed, GradientSpec

MATRIX = (40, 100)
MATRIX_BYTES = 4 * 40 * 100


def sum_is_exact(exchanged, gradients):
    """Tells for each gradient whether all ranks have the sum to the last bit."""
    return [
        all(np.array_equal(mine, tf.add_n(parts)) for mine in tensors)
        for tensors, parts in zip(
            zip(*exchanged, strict=True), zip(*gradients, strict=True), strict=True
        )
    ]


@pytest.mark.parametrize("bucket_bytes", [1, 10**9])
def test_excluded_gradients_are_exact(rng, bucket_bytes):
    names = ["encoder/kernel", "head/kernel", "encoder/norm", "kernel_head"]
    specs = [GradientSpec(name, MATRIX, "float32") for name in names]
    template = OneBit(exclude=["^head/", "norm"], bucket_bytes=bucket_bytes)
    gradients = [gradients_of(rng, [MATRIX] * 4) for _ in range(2)]
    exchanged, _ = exchange(build_workers(Bucketed(template), specs, 2), gradients)
    assert sum_is_exact(exchanged, gradients) == [False, True, True, False]


def test_types_that_the_exchange_does_not_know_are_exact(rng):
    dtypes = ["float64", "float32", "float64", "float16"]
    specs = [GradientSpec(str(i), MATRIX, dtype) for i, dtype in enumerate(dtypes)]
    gradients = [[gradients_of(rng, [MATRIX], dtype)[0] for dtype in dtypes] for _ in range(2)]
    exchanged, _ = exchange(build_workers(Bucketed(OneBit()), specs, 2), gradients)
    assert sum_is_exact(exchanged, gradients) == [True, False, True, False]
    assert [tensor.dtype.name for tensor in exchanged[0]] == dtypes


def requests_of(template, specs):
    """Returns the names of the collectives that one worker requests."""
    (worker,) = build_workers(Bucketed(template), specs, 1)
    generator = worker.run([tf.ones(spec.shape, spec.dtype) for spec in specs])
    names, answer = [], None
    while True:
        try:
            request = generator.send(answer)
        except StopIteration:
            return names
        names.append(request.name)
        # Alone, a worker receives what it sends.
        answer = request.tensor if isinstance(request, AllToAll | AllGather) else request.tensors


@pytest.mark.parametrize(("bucket_bytes", "buckets"), [(1, 6), (2 * MATRIX_BYTES, 3), (10**9, 1)])
def test_buckets_are_filled_up_to_their_size(bucket_bytes, buckets):
    names = requests_of(OneBit(bucket_bytes=bucket_bytes), specs_of([MATRIX] * 6))
    stages = ["all_to_all", "all_gather"]
    assert names == [f"test/bucket_{i}/{stage}" for i in range(buckets) for stage in stages]


def test_last_gradients_are_exchanged_first(rng):
    shapes = [(10, 200), (20, 200), (30, 200)]
    (worker,) = build_workers(Bucketed(OneBit(bucket_bytes=1)), specs_of(shapes), 1)
    request = next(worker.run(gradients_of(rng, shapes)))
    codes_and_levels = 30 * (7 + 2)
    assert request.tensor.shape == [1, 1 + codes_and_levels]


def test_names_of_collectives_are_distinct():
    specs = [
        *specs_of([MATRIX] * 4),
        GradientSpec("excluded", MATRIX, "float32"),
        GradientSpec("double", MATRIX, "float64"),
    ]
    names = requests_of(OneBit(bucket_bytes=MATRIX_BYTES, exclude=["excluded"]), specs)
    assert len(set(names)) == len(names) == 4 * 2 + 2 * 2


def test_full_precision_bytes_are_those_of_an_all_reduce_in_float32(rng):
    shapes = [MATRIX, (7,)]
    for dtype in ("float32", "float16"):
        workers = build_workers(Bucketed(OneBit()), specs_of(shapes, dtype), 4)
        assert workers[0].full_precision_bytes() == 2 * 3 * 4 * 4007 // 4
    exchange(workers, [gradients_of(rng, shapes, dtype) for _ in range(4)])
    assert workers[0].bytes_sent() < workers[0].full_precision_bytes() / 15


# Bad gradients: coded, plain, excluded, of another type, sparse.
SPECS = [
    GradientSpec("dense/kernel", MATRIX, "float32"),
    GradientSpec("dense/bias", (100,), "float32"),
    GradientSpec("head/kernel", MATRIX, "float32"),
    GradientSpec("double/kernel", MATRIX, "float64"),
    GradientSpec("embedding", (10, 4), "float32", sparse=True),
]


def gradients_with(value, bad):
    """Returns gradients of ones, with the value in the gradients `bad`."""
    gradients = []
    for i, spec in enumerate(SPECS):
        values = np.ones((2, 4) if spec.sparse else spec.shape)
        if i in bad:
            values.flat[-1] = value
        tensor = tf.constant(values, spec.dtype)
        if spec.sparse:
            tensor = tf.IndexedSlices(tensor, tf.constant([1, 7]), tf.constant(spec.shape))
        gradients.append(tensor)
    return gradients


def step_with(value, bad_by_rank, template, in_graph):
    workers = build_workers(Bucketed(template), SPECS, 3)
    gradients = [gradients_with(value, bad_by_rank.get(rank, ())) for rank in range(3)]
    step = tf.function(exchange) if in_graph else exchange
    return step(workers, gradients)


def refuses(rank, name):
    message = rf"Rank {rank} met an infinity or NaN in the gradient of \W+{name}\W"
    return pytest.raises(tf.errors.InvalidArgumentError, match=message)


every_mode = pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
every_gradient = pytest.mark.parametrize("bad", range(len(SPECS)), ids=[s.name for s in SPECS])


@every_gradient
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("bucket_bytes", [1, 10**9], ids=["buckets", "one_bucket"])
def test_error_names_the_rank_and_the_variable(bad, value, bucket_bytes):
    template = OneBit(exclude=["head"], bucket_bytes=bucket_bytes)
    with refuses(1, SPECS[bad].name):
        step_with(value, {1: [bad]}, template, in_graph=False)


def test_error_in_a_graph_names_the_rank_and_the_variable():
    workers = build_workers(Bucketed(OneBit(exclude=["head"], bucket_bytes=1)), SPECS, 3)
    step = tf.function(lambda gradients: exchange(workers, gradients))
    for bad, spec in enumerate(SPECS):
        with refuses(1, spec.name):
            step([gradients_with(np.nan, [bad] if rank == 1 else ()) for rank in range(3)])
    assert step.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("in_graph", [False, *nightly(True)], ids=["eager", "graph"])
@pytest.mark.parametrize(
    "template",
    [FullPrecision(), WarmStart(OneBit(), steps=1), OneBit(error_feedback=False), Threshold()],
    ids=lambda template: type(template).__name__,
)
def test_every_exchange_ends_in_the_error(template, in_graph):
    with refuses(2, "dense/kernel"):
        step_with(np.nan, {2: [0]}, template, in_graph)


def test_error_names_the_first_rank():
    with refuses(0, "dense/kernel"):
        step_with(np.nan, {0: [0], 2: [1]}, OneBit(), in_graph=False)


def test_sum_that_overflows_is_reported_by_its_owner():
    huge = OneBit(min_column_size=1, max_column_size=32)  # Each row of one value is a column.
    specs = [GradientSpec("kernel", (2000, 1), "float32")]
    workers = build_workers(Bucketed(huge), specs, 2)
    gradients = [tf.concat([tf.zeros([1999, 1]), [[3e38]]], axis=0)]
    with refuses(1, "kernel"):
        exchange(workers, [gradients, gradients])


@pytest.mark.parametrize(
    "template",
    [FullPrecision(), OneBit(), Threshold(4e4), WarmStart(OneBit(), steps=1)],
    ids=lambda template: type(template).__name__,
)
def test_sum_that_overflows_its_type_is_reported(template):
    specs = [GradientSpec("kernel", (64, 32), "float16")]
    workers = build_workers(Bucketed(template), specs, 2)
    gradients = [tf.fill([64, 32], tf.constant(5e4, tf.float16))]
    with pytest.raises(tf.errors.InvalidArgumentError, match="All ranks met .* of .*kernel"):
        exchange(workers, [gradients, gradients])


@every_mode
def test_finite_gradients_pass(in_graph):
    exchanged, flags = step_with(0.0, {}, OneBit(exclude=["head"]), in_graph)
    assert flags[0].numpy().tolist() == [0, 0, 0]
    np.testing.assert_array_equal(exchanged[0][2], np.full(MATRIX, 3.0))
