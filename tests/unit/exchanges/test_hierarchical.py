"""Hierarchical: slices of gradients, summed within nodes and exchanged between them."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.support.gradients import SHAPES, as_float64, flat, gradients_of, specs_of
from tf_onebit import FullPrecision, OneBit, Threshold, WarmStart
from tf_onebit.collectives import lockstep
from tf_onebit.collectives.requests import within_node
from tf_onebit.exchanges import Bucketed, Delayed, GradientSpec
from tf_onebit.exchanges.hierarchical import Hierarchical

# Rows as wide as a column, so that slices have the columns of whole gradients.
WIDE = [(40, 512), (7, 64), (6, 128), (512,)]
FORMS = [(2, 2), (3, 2), (2, 5)]  # numbers of nodes, and of workers on each


def build(template, specs, nodes, per_node, **options):
    workers = []
    for node, place in itertools.product(range(nodes), range(per_node)):
        worker = Hierarchical(template, place=place, per_node=per_node, **options)
        worker.build(specs, node, nodes, "test")
        workers.append(worker)
    return workers


def step(workers, gradients, per_node, method=None, scale=1.0):
    """Returns what each worker receives in a step."""
    method = method or (lambda worker, mine: worker.run(mine, scale))
    pairs = zip(workers, gradients, strict=True)
    results = lockstep.run([method(*pair) for pair in pairs], per_node=per_node)
    return [exchanged for exchanged, _ in results]


def assert_same_bits(exchanged):
    for other in exchanged[1:]:
        for mine, first in zip(other, exchanged[0], strict=True):
            np.testing.assert_array_equal(mine, first)


def of_all(rng, count, shapes=SHAPES, dtype="float32"):
    return [gradients_of(rng, shapes, dtype) for _ in range(count)]


@pytest.mark.parametrize(("nodes", "per_node"), FORMS)
@pytest.mark.parametrize(("dtype", "relative"), [("float64", 1e-14), ("float16", 2.0**-8)])
def test_full_precision_is_the_sum_of_all(rng, nodes, per_node, dtype, relative):
    gradients = of_all(rng, nodes * per_node, dtype=dtype)
    workers = build(FullPrecision(), specs_of(SHAPES, dtype), nodes, per_node)
    exchanged = step(workers, gradients, per_node, scale=0.5)
    assert_same_bits(exchanged)
    expected = 0.5 * sum(flat(mine, tf.float64) for mine in gradients)
    np.testing.assert_allclose(
        flat(exchanged[0], tf.float64), expected, rtol=relative, atol=20 * relative
    )
    assert [one.shape for one in exchanged[0]] == SHAPES
    assert {one.dtype.name for one in exchanged[0]} == {dtype}


def unsent(workers, place, per_node, name):
    """Returns what the workers at a place have not sent of a gradient: array of their slice."""
    worker_residuals, shards = [], []
    for worker in workers[place::per_node]:
        runs = [
            as_float64(values)
            for bucket in worker.buckets
            for of, values in bucket.exchange.residuals()
            if of == name
        ]
        worker_residuals += runs[:1]
        shards += runs[1:]
    return np.sum(worker_residuals, axis=0) + (np.concatenate(shards) if shards else 0.0)


@pytest.mark.parametrize(
    "template",
    [OneBit(min_size=0), OneBit(min_size=0, bucket_bytes=1, aggregate_bits=2), Threshold(0.5)],
    ids=["1-bit", "2 bits, small buckets", "threshold"],
)
@pytest.mark.parametrize(("nodes", "per_node"), FORMS)
def test_what_is_sent_and_what_is_left_are_what_was_given(rng, template, nodes, per_node):
    workers = build(template, specs_of(SHAPES), nodes, per_node)
    given, received = 0.0, 0.0
    for _ in range(3):
        gradients = of_all(rng, nodes * per_node)
        exchanged = step(workers, gradients, per_node)
        assert_same_bits(exchanged)
        given = given + sum(flat(mine, tf.float64) for mine in gradients)
        received = received + flat(exchanged[0], tf.float64)
    left = []
    for spec in specs_of(SHAPES):
        of_places = [unsent(workers, place, per_node, spec.name) for place in range(per_node)]
        left.append(sum_or_zeros(of_places, spec.size))
    left = np.concatenate(left)
    assert np.count_nonzero(np.abs(left) > 0.1) > left.size / 4
    # Residuals are parts of the mean of a node.
    np.testing.assert_allclose(received + per_node * left, given, rtol=1e-5, atol=1e-4)


def sum_or_zeros(of_places, size):
    """Joins the slices of a gradient, or returns zeros if it is sent as it is."""
    joined = np.concatenate([np.atleast_1d(one) for one in of_places])
    return joined if joined.size == size else np.zeros(size)


@pytest.mark.parametrize("template", [OneBit(min_size=0), OneBit(aggregate_bits=2, min_size=0)])
def test_nodes_exchange_as_workers_with_the_sums_of_nodes_would(rng, template):
    workers = build(template, specs_of(WIDE), 3, 2)
    flats = [Bucketed(template) for _ in range(3)]
    for rank, one in enumerate(flats):
        one.build(specs_of(WIDE), rank, 3, "test")
    for _ in range(3):
        gradients = of_all(rng, 6, WIDE)
        sums = [
            [a + b for a, b in zip(*pair, strict=True)]
            for pair in zip(gradients[::2], gradients[1::2], strict=True)
        ]
        exchanged = step(workers, gradients, per_node=2)
        expected = step(flats, sums, per_node=1)
        for mine, other in zip(exchanged[0], expected[0], strict=True):
            np.testing.assert_array_equal(mine, other)


def only_slice(gradients, place):
    """Returns gradients with the slice of one of two workers, and ones elsewhere."""
    kept = []
    for gradient in gradients:
        middle = -(-gradient.shape[0] // 2)
        halves = [gradient[:middle], gradient[middle:]]
        halves[1 - place] = tf.ones_like(halves[1 - place])
        kept.append(tf.concat(halves, axis=0))
    return kept


def test_updates_of_a_node_are_cut_and_not_summed(rng):
    template = OneBit(min_size=0, moments="local")
    workers = build(template, specs_of(WIDE), 2, 2, takes_updates=True)
    flats = [Bucketed(template, takes_updates=True) for _ in range(2)]
    for rank, one in enumerate(flats):
        one.build(specs_of(WIDE), rank, 2, "test")
    for _ in range(2):
        first, second = of_all(rng, 2, WIDE)
        # A worker needs no other slice of its updates.
        updates = [only_slice(one, place) for one in (first, second) for place in range(2)]
        exchanged = step(workers, updates, 2, scale=0.5)
        expected = step(flats, [first, second], 1, scale=0.5)
        assert_same_bits(exchanged)
        for mine, other in zip(exchanged[0], expected[0], strict=True):
            np.testing.assert_array_equal(mine, other)


def test_a_warm_up_of_updates_returns_them(rng):
    template = WarmStart(OneBit(min_size=0, moments="local"), steps=2)
    workers = build(template, specs_of(WIDE), 2, 2, takes_updates=True)
    for is_warm in (True, True, False):
        assert bool(workers[3].is_warm()) == is_warm
        (gradients,) = of_all(rng, 1, WIDE)
        summed = step(workers, [gradients] * 4, 2, lambda w, mine: w.run_uncompressed(mine, 0.25))
        alike = step(workers, summed, 2, lambda worker, mine: worker.run_alike(mine))
        for mine, other in zip(alike[3], gradients, strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-6)


def test_gradients_of_updates_become_the_mean_of_their_node(rng):
    workers = build(OneBit(moments="local"), specs_of(SHAPES), 2, 2, takes_updates=True)
    gradients = of_all(rng, 4)
    means = step(workers, gradients, 2, lambda w, mine: within_node(w.mean_of_node(mine)))
    for node in (0, 1):
        pair = gradients[2 * node], gradients[2 * node + 1]
        expected = np.mean([flat(mine) for mine in pair], axis=0)
        for place in (0, 1):
            np.testing.assert_allclose(flat(means[2 * node + place]), expected, rtol=1e-6)


def sparse(indices, values):
    values = np.float32(values)[:, np.newaxis]
    return tf.IndexedSlices(
        tf.constant(values), tf.constant(indices, tf.int32), tf.constant([9, 1])
    )


@pytest.mark.parametrize("takes_updates", [False, True])
def test_sparse_gradients_are_exact(rng, takes_updates):
    specs = [
        GradientSpec("table", (9, 1), "float32", sparse=True),
        GradientSpec("kernel", (8, 8), "float32"),
    ]
    workers = build(OneBit(), specs, 2, 2, takes_updates=takes_updates)
    tables = [
        sparse([0, 3, 3], [1, 2, 3]),
        sparse([3, 4], [10, 20]),
        sparse([8], [5]),
        sparse([], []),
    ]
    gradients = [[table, tf.zeros([8, 8])] for table in tables]
    # With updates the sum is of nodes, and of means within them.
    factor = 2 if takes_updates else 1
    for table, _ in step(workers, gradients, 2, scale=float(factor)):
        assert sorted(table.indices.numpy()) == [0, 3, 4, 8]
        dense = tf.convert_to_tensor(table).numpy().ravel()
        np.testing.assert_array_equal(dense, [1, 0, 0, 15, 20, 0, 0, 0, 5])


def test_late_gradients_arrive_in_order(rng):
    workers = build(Delayed(FullPrecision(), steps=1), specs_of(SHAPES), 2, 2)
    first, second, third = (of_all(rng, 4) for _ in range(3))
    lockstep.run([w.hold(mine) for w, mine in zip(workers, first, strict=True)], per_node=2)
    exchanged = step(workers, second, 2)
    np.testing.assert_allclose(flat(exchanged[0]), sum(map(flat, first)), rtol=1e-5, atol=1e-5)
    like = [[tf.zeros_like(one) for one in third[0]] for _ in range(4)]
    assert workers[0].number_held() == 1
    released = step(workers, like, 2, lambda worker, mine: worker.release(1, mine, 1.0))
    assert_same_bits(released)
    np.testing.assert_allclose(flat(released[0]), sum(map(flat, second)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("place", [0, 1])
def test_a_value_that_is_not_finite_ends_the_step_on_all_workers(rng, place):
    """Only the workers with the slice exchange it."""
    shapes = [(4, 64), (64,)]
    workers = build(OneBit(min_size=0), specs_of(shapes), 2, 2)
    gradients = of_all(rng, 4, shapes)
    bad = gradients[3][0].numpy()
    bad[3 * place, 5] = np.nan
    gradients[3][0] = tf.constant(bad)
    ended = []

    def noting(worker, mine):
        try:
            return (yield from worker.run(mine))
        except tf.errors.InvalidArgumentError as error:
            ended.append(str(error))
            return mine, None

    step(workers, gradients, 2, noting)
    assert len(ended) == 4
    assert all("Node 1 met an infinity or NaN in the gradient of 'layer_0" in one for one in ended)


def bytes_between_nodes(shapes, nodes, per_node):
    """Returns the bytes that a node sends to others in a step, for each node."""
    workers = build(OneBit(), specs_of(shapes), nodes, per_node)
    step(workers, of_all(np.random.default_rng(0), nodes * per_node, shapes), per_node)
    sent = [worker.bytes_sent() for worker in workers]
    return [sum(sent[node * per_node :][:per_node]) for node in range(nodes)]


# Slices of some of them are smaller than `min_size`.
@pytest.mark.parametrize("shapes", [WIDE, [(64, 64)] * 4 + [(3, 3, 16, 32)]])
def test_a_node_sends_as_much_as_one_worker_would(shapes):
    alone = bytes_between_nodes(shapes, 4, 1)
    for shared, one in zip(bytes_between_nodes(shapes, 4, 5), alone, strict=True):
        assert shared < 1.15 * one  # each worker has a header, and columns of its own


def test_residuals_are_divided_among_the_workers_of_a_node():
    workers = build(OneBit(min_size=0), specs_of([(40, 512)]), 2, 4)
    sizes = [worker.state()["bucket_0/worker_residual"].size for worker in workers]
    assert sizes == [40 * 512 // 4] * 8


def test_means_do_not_overflow_where_sums_would():
    specs = specs_of([(4, 64)], "float16")
    gradients = [[tf.fill([4, 64], tf.constant(40000.0, tf.float16))] for _ in range(4)]
    workers = build(OneBit(min_size=0), specs, 2, 2)
    for (exchanged,) in step(workers, gradients, 2, scale=0.25):
        np.testing.assert_allclose(exchanged, 40000.0, rtol=1e-3)


def test_only_velocities_of_sent_values_of_the_own_slice_are_cleared(rng):
    shapes = [(4, 64), (33,)]
    workers = build(Threshold(0.5), specs_of(shapes), 2, 2)
    velocities = [[tf.Variable(tf.ones(shape)) for shape in shapes] for _ in workers]
    for worker, own in zip(workers, velocities, strict=True):
        worker.set_velocities([own])
    sent = [np.zeros(shape, bool) for shape in shapes]
    for _ in range(6):  # messages grow
        exchanged = step(workers, of_all(rng, 1, shapes) * 4, 2)  # all send the same values
        sent = [before | (one.numpy() != 0) for before, one in zip(sent, exchanged[0], strict=True)]
    for rank, (matrix, vector) in enumerate(velocities):
        rows, values = (
            (slice(0, 2), slice(0, 17)) if rank % 2 == 0 else (slice(2, 4), slice(17, 33))
        )
        for variable, own, index in ((matrix, rows, 0), (vector, values, 1)):
            expected = np.ones(variable.shape)
            expected[own] = ~sent[index][own]
            np.testing.assert_array_equal(variable, expected)
            assert 0 < expected.sum() < expected.size


@pytest.mark.parametrize(("before", "now"), [((2, 2), (4, 1)), ((2, 2), (2, 4)), ((4, 1), (2, 2))])
def test_other_numbers_of_workers_on_a_node_cannot_go_on(before, now):
    states = [worker.state() for worker in build(OneBit(min_size=0), specs_of(WIDE), *before)]
    workers = build(OneBit(min_size=0), specs_of(WIDE), *now)
    with pytest.raises(ValueError, match=f"a state of nodes with {before[1]} worker.*{now[1]} w"):
        workers[0].load_state(states[:: before[1]])


def test_state_goes_on(rng):
    workers = build(OneBit(min_size=0), specs_of(WIDE), 2, 2)
    first, second = of_all(rng, 4, WIDE), of_all(rng, 4, WIDE)
    step(workers, first, 2)
    states = [worker.state() for worker in workers]
    expected = step(workers, second, 2)
    resumed = build(OneBit(min_size=0), specs_of(WIDE), 2, 2)
    for rank, worker in enumerate(resumed):
        worker.load_state(states[rank % 2 :: 2])
    for mine, other in zip(step(resumed, second, 2)[0], expected[0], strict=True):
        np.testing.assert_array_equal(mine, other)
