"""Threshold against the paper: the oracle, and properties over many steps."""

import numpy as np
import pytest
import tensorflow as tf

from tests.reference import threshold as oracle
from tests.support.gradients import (
    SHAPES,
    SIZE,
    as_float64,
    assert_close,
    build_workers,
    exchange,
    flat,
    gradients_of,
    specs_of,
)
from tests.support.nightly import nightly
from tf_onebit import Threshold, WarmStart
from tf_onebit.exchanges import Bucketed
from tf_onebit.ops.threshold import HEADER_WORDS

CODINGS = ["packed", "golomb_rice"]

every_world_size = pytest.mark.parametrize("world_size", [1, 5, *nightly(2)])
every_dtype = pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
every_coding = pytest.mark.parametrize("coding", CODINGS)


class InParts(Threshold):
    """An exchange in parts, like one of a bucket of more than 2^31 values."""

    part_size = 100


# ------------------------------------------------------------------------------ what the paper says


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
            # Values that have waited are the same up to rounding.
            np.testing.assert_allclose(worker.residual, residual, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("world_size", [2, *nightly(1, 5)])
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
    # In units of the sum of magnitudes, because rounding errors of the steps add up.
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
            assert mine.metrics() == theirs.metrics()
            assert theirs.bytes_sent() < mine.bytes_sent() or world_size == 1


@every_coding
def test_parts_give_what_an_unsplit_bucket_gives(rng, coding):
    whole, split = (
        build_workers(cls(1.0, coding=coding), specs_of([(SIZE,)]), 2)
        for cls in (Threshold, InParts)
    )
    for _ in range(4):
        # Both have room for all values.
        gradients = np.zeros([2, SIZE], np.float32)
        gradients[:, :: SIZE // 15] = rng.uniform(-2, 2, gradients[:, :: SIZE // 15].shape)
        gradients = [[tf.constant(mine)] for mine in gradients]
        (of_whole, _), (of_split, _) = exchange(whole, gradients), exchange(split, gradients)
        np.testing.assert_array_equal(of_whole[0][0], of_split[0][0])
        assert np.any(of_whole[0][0])
        for mine, theirs in zip(whole, split, strict=True):
            np.testing.assert_array_equal(mine.residual, theirs.residual)
            assert mine.metrics() == theirs.metrics()
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


# -------------------------------------------------------------------------------------- odd buckets


@every_coding
@pytest.mark.parametrize("given", [{"tau": 1.0}, {"target_density": 0.5}], ids=str)
@pytest.mark.parametrize("cls", [InParts, *nightly(Threshold)])
def test_buckets_without_values_are_exchanged(rng, given, coding, cls):
    shapes = [(0,), (4,), (5, 0)]
    template = Bucketed(cls(**given, coding=coding, bucket_bytes=1))
    workers = build_workers(template, specs_of(shapes), 2)
    for _ in range(3):
        gradients = [gradients_of(rng, shapes) for _ in range(2)]
        exchanged, flags = exchange(workers, gradients)
        assert [tuple(tensor.shape) for tensor in exchanged[0]] == shapes
        assert not np.any(flags)
        assert all(np.isfinite(list(workers[0].metrics().values())))
    alone = build_workers(cls(**given, coding=coding), specs_of([(0,)]), 2)
    exchange(alone, [[tf.zeros([0])]] * 2)
    assert alone[0].bytes_sent() == 4 * HEADER_WORDS
    assert alone[0].metrics()["density"] == 0


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


@every_coding
def test_what_workers_share_changes_only_in_a_step_that_is_finite(rng, coding):
    shapes = [(200,)]
    workers = build_workers(Threshold(target_density=0.05, coding=coding), specs_of(shapes), 2)
    for _ in range(3):
        exchange(workers, [gradients_of(rng, shapes) for _ in range(2)])
    before = workers[0].state()
    gradients = [gradients_of(rng, shapes) for _ in range(2)]
    spoilt = [gradients[0], [tf.tensor_scatter_nd_update(gradients[1][0], [[3]], [np.nan])]]
    exchange(workers, spoilt)
    for worker in workers:
        for name in ("tau", "capacity"):
            np.testing.assert_array_equal(worker.state()[name], before[name])
    exchange(workers, gradients)
    assert (workers[0].state()["tau"] != before["tau"]).any()
    np.testing.assert_array_equal(workers[0].state()["tau"], workers[1].state()["tau"])


# ------------------------------------------------------------------------------ measures and states


def test_measures_are_of_the_last_exchange(rng):
    workers = build_workers(Threshold(2.0), specs_of([(100,)]), 2)
    assert workers[0].metrics() == {"density": 0.0, "tau": 2.0}
    gradients = np.zeros([2, 100], np.float32)
    gradients[0, :30], gradients[1, 10:20] = 3.0, -3.0
    exchange(workers, [[tf.constant(mine)] for mine in gradients])
    for worker in workers:
        assert worker.metrics() == {"density": pytest.approx(0.2), "tau": 2.0}


def test_measures_of_buckets_are_averaged_by_their_sizes():
    template = Bucketed(Threshold(2.0, bucket_bytes=1))
    (worker,) = build_workers(template, specs_of([(30,), (90,)]), 1)
    exchange([worker], [[tf.fill([30], 3.0), tf.zeros([90])]])
    assert worker.metrics() == {"density": pytest.approx(0.25), "tau": 2.0}


def test_measures_of_a_warm_start_are_those_of_the_last_exchange(rng):
    workers = build_workers(WarmStart(Threshold(0.1), steps=1), specs_of(SHAPES), 2)
    measured = []
    for _ in range(2):
        exchange(workers, [gradients_of(rng, SHAPES) for _ in range(2)])
        measured.append(workers[0].metrics())
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
        # Gradients are as large as before.
        assert worker.metrics()["tau"] == before.metrics()["tau"]


def test_state_of_buckets_is_refused_by_a_whole_model(rng):
    """Asynchronous workers exchange such states, and others do not."""
    whole = build_workers(Threshold(1.0), specs_of(SHAPES), 2)
    split = build_workers(Bucketed(Threshold(1.0)), specs_of(SHAPES), 2)
    for workers, others in ((whole, split), (split, whole)):
        with pytest.raises(ValueError, match="same exchange as before.*Use the earlier exchange"):
            workers[0].load_state([other.state() for other in others])
