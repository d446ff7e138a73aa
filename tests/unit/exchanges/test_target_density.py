"""Tau for a target density: its rule, and its effect on gradients."""

import numpy as np
import pytest
import tensorflow as tf

from tests.reference import threshold as oracle
from tests.support.gradients import (
    SHAPES,
    SIZE,
    build_workers,
    exchange,
    flat,
    gradients_of,
    specs_of,
)
from tests.support.nightly import nightly
from tf_onebit import Threshold
from tf_onebit.exchanges.adaptive_threshold import Tau


def vectors_of(rng, world_size, size, scale=1.0):
    """Returns the gradients of each worker: one normally distributed vector."""
    return [[tf.constant(scale * rng.standard_normal(size), tf.float32)] for _ in range(world_size)]


def tau_of(worker):
    return worker.metrics()["tau"]


@pytest.mark.parametrize("target", [0.01, *nightly(0.5, 0.001)])
def test_tau_follows_its_rule(rng, target):
    tau, expected = Tau(None, target), oracle.Tau(target)
    follow = tf.function(tau.follow)
    for density in (0, *target * rng.uniform(0, 3, 50), *np.zeros(20), *np.ones(20)):
        mean_square = rng.uniform(1, 2)
        follow(tf.constant(density, tf.float32), tf.constant(mean_square, tf.float32))
        expected.follow(density, mean_square)
        threshold, magnitude = tau.choose([], None, 1.0)
        np.testing.assert_allclose(threshold, expected.value, rtol=1e-5)
        np.testing.assert_array_equal(threshold, magnitude)


def test_nothing_is_sent_before_tau_is_known(rng):
    workers = build_workers(Threshold(target_density=0.1), specs_of([(SIZE,)]), 2)
    gradients = vectors_of(rng, 2, SIZE)
    exchanged, _ = exchange(workers, gradients)
    assert not np.any(exchanged[0][0])
    for worker, (gradient,) in zip(workers, gradients, strict=True):
        np.testing.assert_array_equal(worker.residual, gradient)
        root_mean_square = np.sqrt(np.mean(np.square(flat(sum(gradients, [])), dtype=np.float64)))
        expected = oracle.normal_quantile(0.1) * root_mean_square
        np.testing.assert_allclose(tau_of(worker), expected, rtol=1e-5)
        assert worker.metrics()["density"] == 0
    exchanged, _ = exchange(workers, vectors_of(rng, 2, SIZE))
    assert np.any(exchanged[0][0])


def test_zero_gradients_leave_tau_unknown(rng):
    workers = build_workers(Threshold(target_density=0.1), specs_of([(SIZE,)]), 2)
    for _ in range(3):
        exchanged, flags = exchange(workers, [[tf.zeros([SIZE])]] * 2)
        assert not np.any(exchanged[0][0]) and not np.any(flags)
        assert workers[0].metrics() == {"density": 0.0, "tau": 0.0}
    for _ in range(2):
        exchanged, _ = exchange(workers, vectors_of(rng, 2, SIZE))
    assert np.any(exchanged[0][0])


def step_with_normal_gradients(workers, size):
    """Returns a function of a seed and a scale that exchanges gradients of that scale."""

    @tf.function
    def step(seed, scale):
        ranks = range(len(workers))
        for_rank = [scale * tf.random.stateless_normal([size], [seed, rank]) for rank in ranks]
        exchange(workers, [[gradient] for gradient in for_rank])

    return lambda seed, scale: step(tf.constant(seed), tf.constant(scale))


@pytest.mark.parametrize("target", [0.01, *nightly(0.1)])
def test_density_is_kept_when_gradients_grow_and_shrink(target):
    size = 10_000
    workers = build_workers(Threshold(target_density=target), specs_of([(size,)]), 2)
    step = step_with_normal_gradients(workers, size)
    settled = []
    for phase, scale in enumerate([1.0, 4.0, 1.0]):
        densities = []
        for i in range(150):
            step(1000 * phase + i, scale)
            densities.append(workers[0].metrics()["density"])
        assert abs(np.mean(densities[-50:]) / target - 1) < 0.2
        settled.append(tau_of(workers[0]))
    assert settled[1] / settled[0] == pytest.approx(4, rel=0.2)
    assert settled[2] / settled[0] == pytest.approx(1, rel=0.2)


@pytest.mark.parametrize("scales", [[1e-3] * 3, [1.0] * 10 + [0.0] * 500], ids=["small", "pause"])
def test_gradients_that_grow_all_at_once_are_sent_densely_for_a_moment_only(scales):
    size, target = 10_000, 0.001
    workers = build_workers(Threshold(target_density=target), specs_of([(size,)]), 2)
    step = step_with_normal_gradients(workers, size)
    densities = []
    for i, scale in enumerate([*scales, *[1.0] * 150]):
        step(i, scale)
        densities.append(workers[0].metrics()["density"])
    assert np.count_nonzero(np.array(densities) > 0.05) <= 3
    assert np.mean(densities[-50:]) < 3 * target


@pytest.mark.parametrize("coding", ["packed", *nightly("golomb_rice")])
def test_tau_and_capacity_are_the_same_on_all_workers(rng, coding):
    workers = build_workers(Threshold(target_density=0.05, coding=coding), specs_of(SHAPES), 5)
    for _ in range(4):
        # Each worker has gradients of another size.
        exchange(workers, [gradients_of(rng, SHAPES) for _ in workers])
        for worker in workers[1:]:
            for name in ("tau", "capacity"):
                np.testing.assert_array_equal(worker.state()[name], workers[0].state()[name])
            assert worker.metrics() == workers[0].metrics()


@pytest.mark.parametrize("given", [{"tau": 0.8}, {"target_density": 0.05}], ids=str)
def test_unit_scales_what_is_in_units_of_the_gradient(rng, given):
    plain, scaled = (Threshold(**given) for _ in "ab")
    for exchange_, unit in ((plain, 1.0), (scaled, 0.25)):
        exchange_.build(specs_of(SHAPES), 0, 1, "test", unit)
    for _ in range(3):
        gradients = gradients_of(rng, SHAPES)
        (of_plain,), _ = exchange([plain], [gradients])
        (of_scaled,), _ = exchange([scaled], [[0.25 * gradient for gradient in gradients]])
        np.testing.assert_array_equal(0.25 * flat(of_plain), flat(of_scaled))
        assert scaled.metrics() == plain.metrics()


def test_tau_follows_the_unit_of_gradients(rng):
    workers, resumed = (
        [Threshold(target_density=0.05) for _ in range(world_size)] for world_size in (2, 8)
    )
    for cluster in (workers, resumed):
        for rank, worker in enumerate(cluster):
            world_size = len(cluster)
            worker.build(specs_of(SHAPES), rank, world_size, "test", 1 / world_size)
    for _ in range(3):
        exchange(workers, [gradients_of(rng, SHAPES) for _ in range(2)])
    for worker in resumed:
        worker.load_state([worker.state() for worker in workers])
        assert worker.metrics()["tau"] == workers[0].metrics()["tau"]


def test_gradients_whose_squares_overflow_are_sent():
    (worker,) = build_workers(Threshold(target_density=0.1), specs_of([(4,)]), 1)
    gradient = [tf.constant([3e20, 1.0, -1.0, 1.0])]
    exchange([worker], [gradient])
    exchanged, _ = exchange([worker], [gradient])
    assert np.count_nonzero(exchanged[0][0]) == 1
    assert np.isfinite(worker.metrics()["tau"])


def test_a_density_may_be_tiny():
    (worker,) = build_workers(Threshold(target_density=1e-17), specs_of([(4,)]), 1)
    for _ in range(20):
        exchanged, _ = exchange([worker], [[tf.constant([1.0, 0.0, 0.0, 0.0])]])
    assert np.count_nonzero(exchanged[0][0]) <= 1


def test_a_given_tau_stays_when_a_state_is_loaded(rng):
    workers, resumed = (build_workers(Threshold(tau), specs_of(SHAPES), 2) for tau in (1.0, 2.0))
    exchange(workers, [gradients_of(rng, SHAPES) for _ in range(2)])
    for worker in resumed:
        worker.load_state([worker.state() for worker in workers], ratio=3.0)
        assert tau_of(worker) == 2.0
