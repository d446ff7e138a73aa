"""Threshold against the paper: the oracle, and what must hold over many steps."""

import numpy as np
import pytest
import tensorflow as tf

from tests.reference import threshold as oracle
from tests.unit.gradients import (
    as_float64,
    assert_close,
    build_workers,
    exchange,
    gradients_of,
    specs_of,
)
from tf_onebit import Threshold, WarmStart
from tf_onebit.exchanges import Bucketed
from tf_onebit.exchanges.capacity import Capacity
from tf_onebit.exchanges.tau import Tau
from tf_onebit.ops.threshold import HEADER_WORDS

SHAPES = [(33,), (10, 100), (), (0,), (31, 1), (3, 3, 4, 24), (1, 1)]
SIZE = sum(int(np.prod(shape)) for shape in SHAPES)
CODINGS = ["packed", "golomb_rice"]

every_world_size = pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8])
every_dtype = pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
every_coding = pytest.mark.parametrize("coding", CODINGS)


class InParts(Threshold):
    """As for a bucket of more than 2^31 values."""

    part_size = 100


def flat(tensors, dtype=tf.float32):
    values = [tf.cast(tensor, dtype).numpy().ravel() for tensor in tensors]
    return np.concatenate(values)


def vectors_of(rng, world_size, size, scale=1.0):
    """The gradients of each worker: one normally distributed vector."""
    return [[tf.constant(scale * rng.standard_normal(size), tf.float32)] for _ in range(world_size)]


def capacity_of(worker, world_size):
    """Number of values that the last message had room for."""
    return worker.bytes_sent() // (world_size - 1) // 4 - HEADER_WORDS


def tau_of(worker):
    return worker.measures()["tau"]


# ------------------------------------------------------------------------- what the paper says


@every_world_size
@every_dtype
@every_coding
def test_exchange_is_that_of_the_paper(rng, world_size, dtype, coding):
    tau, scale = 0.7, 1 / world_size
    workers = build_workers(Threshold(tau, coding=coding), specs_of(SHAPES, dtype), world_size)
    cluster = oracle.Cluster(world_size, SIZE, np.float32)
    capacity = oracle.Capacity(SIZE, 0.01 * SIZE)
    for _ in range(4):
        gradients = [gradients_of(rng, SHAPES, dtype) for _ in range(world_size)]
        exchanged, _ = exchange(workers, gradients, scale)
        total = cluster.exchange(list(map(flat, gradients)), tau, capacity.value)
        capacity.follow(cluster.need)
        expected = tf.cast(np.float32(scale) * total, dtype)
        np.testing.assert_array_equal(flat(exchanged[0]), flat([expected]))
        for worker, residual in zip(workers, cluster.residuals, strict=True):
            # What has waited is the same up to rounding.
            np.testing.assert_allclose(worker.residual, residual, rtol=1e-5, atol=1e-6)


@every_world_size
@pytest.mark.parametrize(
    "template",
    [Threshold(1.0), Threshold(target_density=0.03), InParts(target_density=0.03)],
    ids=["tau", "target_density", "in_parts"],
)
def test_all_gradients_are_what_was_applied_and_the_last_residuals(rng, world_size, template):
    workers = build_workers(template, specs_of(SHAPES), world_size)
    local, applied = 0, 0
    for _ in range(20):
        gradients = [gradients_of(rng, SHAPES) for _ in range(world_size)]
        exchanged, _ = exchange(workers, gradients)
        local = local + sum(flat(mine, tf.float64) for mine in gradients)
        applied = applied + flat(exchanged[0], tf.float64)
    kept = sum(as_float64(worker.residual) for worker in workers)
    # In units of what went through: rounding errors of the steps add up.
    np.testing.assert_allclose(applied + kept, local, atol=1e-5 * np.abs(local).max())
    assert min(np.abs(kept).max(), np.abs(applied).max()) > 1e-2 * np.abs(local).max()


@every_coding
def test_values_are_tau_in_either_direction(rng, coding):
    workers = build_workers(Threshold(0.5, coding=coding), specs_of(SHAPES), 1)
    exchanged, _ = exchange(workers, [gradients_of(rng, SHAPES)])
    assert set(flat(exchanged[0])) == {-0.5, 0.0, 0.5}


@pytest.mark.parametrize("scale", [1.0, 0.5, -2.0])
def test_result_is_scaled_and_the_residuals_are_not(rng, scale):
    workers, scaled_workers = (build_workers(Threshold(1.0), specs_of(SHAPES), 2) for _ in "ab")
    for _ in range(2):
        gradients = [gradients_of(rng, SHAPES) for _ in range(2)]
        exchanged, _ = exchange(workers, gradients)
        scaled, _ = exchange(scaled_workers, gradients, scale)
        np.testing.assert_array_equal(scale * flat(exchanged[0]), flat(scaled[0]))
    for worker, scaled_worker in zip(workers, scaled_workers, strict=True):
        np.testing.assert_array_equal(worker.residual, scaled_worker.residual)


@pytest.mark.parametrize("given", [{"tau": 1.5}, {"target_density": 0.02}], ids=str)
@pytest.mark.parametrize("world_size", [1, 3])
def test_coding_changes_nothing_but_the_bytes(rng, given, world_size):
    packed, coded = (
        build_workers(Threshold(**given, coding=coding), specs_of(SHAPES), world_size)
        for coding in CODINGS
    )
    for _ in range(5):
        gradients = [gradients_of(rng, SHAPES) for _ in range(world_size)]
        of_packed, of_coded = exchange(packed, gradients)[0], exchange(coded, gradients)[0]
        np.testing.assert_array_equal(flat(of_packed[0]), flat(of_coded[0]))
        for mine, theirs in zip(packed, coded, strict=True):
            for name, array in mine.state().items():
                np.testing.assert_array_equal(array, theirs.state()[name])
            assert mine.measures() == theirs.measures()
            assert theirs.bytes_sent() < mine.bytes_sent() or world_size == 1


@every_coding
def test_parts_give_what_an_unsplit_bucket_gives(rng, coding):
    whole, split = (
        build_workers(cls(1.0, coding=coding), specs_of([(SIZE,)]), 2)
        for cls in (Threshold, InParts)
    )
    for _ in range(4):
        # No more values than there is room for in either.
        gradients = np.zeros([2, SIZE], np.float32)
        gradients[:, :: SIZE // 15] = rng.uniform(-2, 2, gradients[:, :: SIZE // 15].shape)
        gradients = [[tf.constant(mine)] for mine in gradients]
        (of_whole, _), (of_split, _) = exchange(whole, gradients), exchange(split, gradients)
        np.testing.assert_array_equal(of_whole[0][0], of_split[0][0])
        assert np.any(of_whole[0][0])
        for mine, theirs in zip(whole, split, strict=True):
            np.testing.assert_array_equal(mine.residual, theirs.residual)
            assert mine.measures() == theirs.measures()
    parts = -(-SIZE // InParts.part_size)
    assert split[0].bytes_sent() >= parts * HEADER_WORDS * 4


def test_residual_norm_is_that_of_the_residual(rng):
    workers = build_workers(Threshold(1.0), specs_of(SHAPES), 3)
    for _ in range(2):
        exchange(workers, [gradients_of(rng, SHAPES) for _ in range(3)])
    for worker in workers:
        squares = np.square(as_float64(worker.residual)).sum()
        assert_close(worker.residual_sum_of_squares(), squares, 1e-5)


def test_one_value_is_held_per_value():
    (worker,) = build_workers(Threshold(), specs_of(SHAPES), 1)
    assert worker.residual.shape == [SIZE]
    others = [variable for variable in worker.variables if variable is not worker.residual]
    assert all(variable.shape == [] for variable in others)


# ------------------------------------------------------------------------------------------- tau


@pytest.mark.parametrize("target", [0.5, 0.1, 0.01, 0.001])
def test_tau_follows_its_rule(rng, target):
    tau, expected = Tau(None, target), oracle.Tau(target)
    for density in (0, *target * rng.uniform(0, 3, 50), *np.zeros(20), *np.ones(20)):
        mean_square = rng.uniform(1, 2)
        tau.follow(tf.constant(density, tf.float32), tf.constant(mean_square, tf.float32))
        expected.follow(density, mean_square)
        np.testing.assert_allclose(tau.threshold(), expected.value, rtol=1e-5)
        np.testing.assert_array_equal(tau.threshold(), tau.step())


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
        assert worker.measures()["density"] == 0
    exchanged, _ = exchange(workers, vectors_of(rng, 2, SIZE))
    assert np.any(exchanged[0][0])


def test_zero_gradients_leave_tau_unknown(rng):
    workers = build_workers(Threshold(target_density=0.1), specs_of([(SIZE,)]), 2)
    for _ in range(3):
        exchanged, flags = exchange(workers, [[tf.zeros([SIZE])]] * 2)
        assert not np.any(exchanged[0][0]) and not np.any(flags)
        assert workers[0].measures() == {"density": 0.0, "tau": 0.0}
    for _ in range(2):
        exchanged, _ = exchange(workers, vectors_of(rng, 2, SIZE))
    assert np.any(exchanged[0][0])


def step_with_normal_gradients(workers, size):
    """Function of a seed and a scale that exchanges gradients of that scale."""

    @tf.function
    def step(seed, scale):
        ranks = range(len(workers))
        for_rank = [scale * tf.random.stateless_normal([size], [seed, rank]) for rank in ranks]
        exchange(workers, [[gradient] for gradient in for_rank])

    return lambda seed, scale: step(tf.constant(seed), tf.constant(scale))


@pytest.mark.parametrize("target", [0.1, 0.01])
def test_density_is_kept_when_gradients_grow_and_shrink(target):
    size = 10_000
    workers = build_workers(Threshold(target_density=target), specs_of([(size,)]), 2)
    step = step_with_normal_gradients(workers, size)
    settled = []
    for phase, scale in enumerate([1.0, 4.0, 1.0]):
        densities = []
        for i in range(250):
            step(1000 * phase + i, scale)
            densities.append(workers[0].measures()["density"])
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
        densities.append(workers[0].measures()["density"])
    assert np.count_nonzero(np.array(densities) > 0.05) <= 3
    assert np.mean(densities[-50:]) < 3 * target


@every_coding
def test_tau_and_capacity_are_the_same_on_all_workers(rng, coding):
    workers = build_workers(Threshold(target_density=0.05, coding=coding), specs_of(SHAPES), 5)
    for _ in range(4):
        # Each has gradients of another size.
        exchange(workers, [gradients_of(rng, SHAPES) for _ in workers])
        for worker in workers[1:]:
            for name in ("tau", "capacity"):
                np.testing.assert_array_equal(worker.state()[name], workers[0].state()[name])
            assert worker.measures() == workers[0].measures()


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
        assert scaled.measures() == plain.measures()


# -------------------------------------------------------------------------------------- capacity


@pytest.mark.parametrize("most", [1, 100, 5000, 2**31])
def test_capacity_follows_its_rule(rng, most):
    capacity, expected = Capacity(most, most // 50), oracle.Capacity(most, most // 50)
    follow = tf.function(capacity.follow)
    # Jumps, a slow decrease, and noise.
    for level in (0.01, 0.02, 0.5, 0.03, 1.0, 0.0, *0.7 * 0.93 ** np.arange(8)):
        for _ in range(35):
            assert int(capacity.at(capacity.step)) == expected.value
            need = int(level * rng.uniform(0.97, 1) * most)
            follow(tf.constant(need, tf.int64))
            expected.follow(need)


def test_capacity_changes_rarely(rng):
    capacity, changes = Capacity(5000, 50), 0
    for _ in range(500):
        before = int(capacity.step)
        capacity.follow(tf.constant(rng.poisson(400), tf.int64))
        changes += before != int(capacity.step)
    assert changes <= 2


@pytest.mark.parametrize("most", [0, 1, 2, 3, 1000, 2**31])
def test_there_are_no_more_capacities_than_variants_of_a_request(most):
    capacity = Capacity(most, most)
    assert int(capacity.at(capacity.step)) == most
    assert int(capacity.step) <= 127


def test_messages_become_longer_and_shorter_and_nothing_is_lost(rng):
    size, tau = 4096, 1.0
    workers = build_workers(Threshold(tau), specs_of([(size,)]), 2)
    needs = [0, 40, 41, 500, *rng.integers(300, 500, 40), *rng.integers(1, 10, 120), 4096, 4096]
    capacities, local, applied = [], 0, 0
    for need in needs:
        gradients = np.zeros([2, size])
        gradients[0, :need] = rng.choice([-1.5, 1.5], need)
        exchanged, _ = exchange(workers, [[tf.constant(mine, tf.float32)] for mine in gradients])
        local, applied = local + gradients.sum(0), applied + as_float64(exchanged[0][0])
        capacities.append(capacity_of(workers[0], 2))
    kept = sum(as_float64(worker.residual) for worker in workers)
    np.testing.assert_array_equal(applied + kept, local)
    assert max(capacities[:3]) < 100 < 250 < min(capacities[4:40])
    assert capacities[-3] <= 20 and capacities[-1] == size
    assert np.count_nonzero(np.diff(capacities)) <= 5


# ----------------------------------------------------------------------------------- odd buckets


@every_coding
@pytest.mark.parametrize("given", [{"tau": 1.0}, {"target_density": 0.5}], ids=str)
@pytest.mark.parametrize("cls", [Threshold, InParts])
def test_buckets_without_values_are_exchanged(rng, given, coding, cls):
    shapes = [(0,), (4,), (5, 0)]
    template = Bucketed(cls(**given, coding=coding, bucket_bytes=1))
    workers = build_workers(template, specs_of(shapes), 2)
    for _ in range(3):
        gradients = [gradients_of(rng, shapes) for _ in range(2)]
        exchanged, flags = exchange(workers, gradients)
        assert [tuple(tensor.shape) for tensor in exchanged[0]] == shapes
        assert not np.any(flags)
        assert all(np.isfinite(list(workers[0].measures().values())))
    alone = build_workers(cls(**given, coding=coding), specs_of([(0,)]), 2)
    exchange(alone, [[tf.zeros([0])]] * 2)
    assert alone[0].bytes_sent() == 4 * HEADER_WORDS
    assert alone[0].measures()["density"] == 0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@every_coding
@pytest.mark.parametrize("cls", [Threshold, InParts])
def test_value_that_is_not_finite_is_flagged_on_all_ranks_and_changes_no_residual(
    rng, value, coding, cls
):
    workers = build_workers(cls(1.0, coding=coding), specs_of(SHAPES), 3)
    gradients = [gradients_of(rng, SHAPES) for _ in range(3)]
    exchange(workers, gradients)
    before = [worker.residual.numpy().copy() for worker in workers]
    bad = [[tf.zeros(shape) for shape in SHAPES] for _ in range(3)]
    bad[1][4], bad[1][5] = (tf.fill(SHAPES[i], value) for i in (4, 5))
    bad[2][1] = tf.fill(SHAPES[1], value)
    exchanged, flags = exchange(workers, bad)
    for of_rank in flags:
        assert of_rank.numpy().tolist() == [0, 5, 2]
    assert np.isfinite(flat(exchanged[0])).all()
    start, stop = 33 + 1000 + 1, 33 + 1000 + 1 + 31 + 864
    np.testing.assert_array_equal(workers[1].residual[start:stop], before[1][start:stop])
    np.testing.assert_array_equal(workers[2].residual[33:1033], before[2][33:1033])
    assert np.isfinite(workers[1].residual_sum_of_squares())


# --------------------------------------------------------------------------- measures and states


def test_measures_are_of_the_last_exchange(rng):
    workers = build_workers(Threshold(2.0), specs_of([(100,)]), 2)
    assert workers[0].measures() == {"density": 0.0, "tau": 2.0}
    gradients = np.zeros([2, 100], np.float32)
    gradients[0, :30], gradients[1, 10:20] = 3.0, -3.0
    exchange(workers, [[tf.constant(mine)] for mine in gradients])
    for worker in workers:
        assert worker.measures() == {"density": pytest.approx(0.2), "tau": 2.0}


def test_measures_of_buckets_are_averaged_by_their_sizes():
    template = Bucketed(Threshold(2.0, bucket_bytes=1))
    (worker,) = build_workers(template, specs_of([(30,), (90,)]), 1)
    exchange([worker], [[tf.fill([30], 3.0), tf.zeros([90])]])
    assert worker.measures() == {"density": pytest.approx(0.25), "tau": 2.0}


def test_measures_of_a_warm_start_are_those_of_the_last_exchange(rng):
    workers = build_workers(WarmStart(Threshold(0.1), steps=1), specs_of(SHAPES), 2)
    measured = []
    for _ in range(2):
        exchange(workers, [gradients_of(rng, SHAPES) for _ in range(2)])
        measured.append(workers[0].measures())
    assert measured[0] == {}
    assert measured[1]["density"] > 0
    assert measured[1]["tau"] == pytest.approx(0.1)


@pytest.mark.parametrize("ratio", [1.0, 0.5, 3.0])
def test_what_is_unsent_grows_by_the_ratio_and_tau_stays(rng, ratio):
    workers, resumed = (
        build_workers(Threshold(target_density=0.05), specs_of(SHAPES), 2) for _ in "ab"
    )
    for _ in range(3):
        exchange(workers, [gradients_of(rng, SHAPES) for _ in range(2)])
    states = [worker.state() for worker in workers]
    for worker, before in zip(resumed, workers, strict=True):
        worker.load_state(states, ratio)
        np.testing.assert_allclose(worker.residual, ratio * before.residual, rtol=1e-6)
        assert tau_of(worker) == tau_of(before)  # gradients are as large as before


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
        assert worker.measures()["tau"] == workers[0].measures()["tau"]


def test_gradients_whose_squares_overflow_are_sent():
    (worker,) = build_workers(Threshold(target_density=0.1), specs_of([(4,)]), 1)
    gradient = [tf.constant([3e20, 1.0, -1.0, 1.0])]
    exchange([worker], [gradient])
    exchanged, _ = exchange([worker], [gradient])
    assert np.count_nonzero(exchanged[0][0]) == 1
    assert np.isfinite(worker.measures()["tau"])


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
