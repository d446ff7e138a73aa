"""Threshold with the largest values of each message: the oracle, and what users rely on."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.gradients import (
    SHAPES,
    SIZE,
    as_float64,
    build_workers,
    exchange,
    flat,
    gradients_of,
    specs_of,
)
from tests.support.nightly import nightly
from tf_onebit import Threshold

DENSITY = 0.05
COUNT = round(DENSITY * SIZE / 2)  # in each of the two rounds
TOLERANCES = {"float32": (1e-5, 1e-5), "float16": (1e-3, 1e-5)}

every_coding = pytest.mark.parametrize("coding", ["packed", "golomb_rice"])


def top_k(**options):
    return Threshold(target_density=DENSITY, selection="top_k", **options)


def largest_twice(values, count):
    """Returns the sum of two rounds, each of the largest values as their mean, in NumPy."""
    sent = np.zeros_like(values)
    for _ in range(2):
        left = values - sent
        largest = np.argsort(-abs(left), kind="stable")[:count]
        sent[largest] += np.sign(left[largest]) * abs(left[largest]).mean()
    return sent


@pytest.mark.parametrize("dtype", TOLERANCES)
@every_coding
@pytest.mark.parametrize("world_size", [1, 3, *nightly(2)])
def test_messages_have_the_largest_values_of_each_worker(rng, dtype, coding, world_size):
    workers = build_workers(top_k(coding=coding), specs_of(SHAPES, dtype), world_size)
    unsent = np.zeros([world_size, SIZE])
    for _ in range(3):
        gradients = [gradients_of(rng, SHAPES, dtype) for _ in range(world_size)]
        corrected = [r + flat(mine, tf.float64) for r, mine in zip(unsent, gradients, strict=True)]
        sent = [largest_twice(values, COUNT) for values in corrected]
        unsent = np.array(corrected) - sent
        exchanged, _ = exchange(workers, gradients)
        expected = flat([tf.cast(sum(sent), dtype)], tf.float64)
        # Of equal magnitudes others may be sent, which only 16-bit gradients have.
        same = np.isclose(flat(exchanged[0], tf.float64), expected, *TOLERANCES[dtype])
        assert same[expected != 0].mean() >= (1.0 if dtype == "float32" else 0.9)
        assert same[expected == 0].mean() >= (1.0 if dtype == "float32" else 0.99)


def test_the_first_exchange_sends_what_the_density_says(rng):
    (worker,) = build_workers(top_k(), specs_of(SHAPES), 1)
    exchanged, _ = exchange([worker], [gradients_of(rng, SHAPES)])
    assert worker.metrics()["density"] == pytest.approx(2 * COUNT / SIZE)
    assert COUNT <= np.count_nonzero(flat(exchanged[0])) <= 2 * COUNT


@every_coding
@pytest.mark.parametrize(
    "decay, dtype", [(1.0, "float32"), (0.5, "float32"), (1.0, "bfloat16"), (0.5, "float16")]
)
def test_what_is_not_sent_waits_and_decays(rng, coding, decay, dtype):
    template = top_k(coding=coding, residual_decay=decay)
    workers = build_workers(template, specs_of(SHAPES, dtype), 2)
    unsent = np.zeros([2, SIZE])
    for _ in range(5):
        gradients = [gradients_of(rng, SHAPES, dtype) for _ in range(2)]
        exchanged, _ = exchange(workers, gradients)
        given = decay * unsent.sum(axis=0) + sum(flat(mine, tf.float64) for mine in gradients)
        unsent = np.array([as_float64(worker.residual) for worker in workers])
        applied = flat(exchanged[0], tf.float64)
        rounding = {"float32": 0.0, "float16": 2**-11, "bfloat16": 2**-8}[dtype]
        error = abs(applied + unsent.sum(axis=0) - given)
        assert (error <= 1e-5 + rounding * abs(applied)).all()
        assert min(abs(applied).max(), abs(unsent).max()) > 0.1


def test_a_threshold_of_a_sample_sends_about_as_many(rng):
    shapes = [(1024, 2048), (300_000,)]
    (worker,) = build_workers(top_k(), specs_of(shapes), 1)
    gradients = [
        tf.constant(rng.normal(size=shape, scale=scale), tf.float32)
        for shape, scale in zip(shapes, (1, 3), strict=True)
    ]
    exchanged, _ = exchange([worker], [gradients])
    assert worker.metrics()["density"] == pytest.approx(DENSITY, rel=0.05)
    sizes, sent = abs(flat(gradients)), flat(exchanged[0]) != 0
    assert sent.mean() == pytest.approx(DENSITY, rel=0.1)
    assert sizes[~sent].max() == pytest.approx(np.quantile(sizes, 1 - sent.mean()), rel=0.02)


def test_a_sample_is_of_all_columns():
    """Every fifth column is small, and the sample has about every fifth value."""
    rng = np.random.default_rng(0)
    gradient = rng.normal(size=(65536, 10)).astype(np.float32)
    gradient[:, ::5] *= 0.1
    (worker,) = build_workers(top_k(), specs_of([gradient.shape]), 1)
    exchanged, _ = exchange([worker], [[tf.constant(gradient)]])
    sent = exchanged[0][0].numpy() != 0
    assert sent.mean() == pytest.approx(DENSITY, rel=0.1)
    assert not sent[:, ::5].any()
    assert sent[: 65536 // 2].mean() == pytest.approx(sent[65536 // 2 :].mean(), rel=0.1)


def test_values_that_samples_miss_are_sent_in_the_end():
    size = 10 * 2**17
    (worker,) = build_workers(top_k(), specs_of([(size,)]), 1)
    gradient = np.zeros(size, np.float32)
    gradient[1000:1003] = 2.0
    total = np.zeros(size)
    for step in range(12):
        given = gradient if step == 0 else np.zeros_like(gradient)
        exchanged, _ = exchange([worker], [[tf.constant(given)]])
        total += flat(exchanged[0], tf.float64)
        # A sample of zeros sends nothing, in place of values without a magnitude.
        assert (worker.metrics()["density"] > 0) == np.any(exchanged[0])
    np.testing.assert_allclose(total, gradient, rtol=1e-6)


def test_the_mean_of_the_largest_numbers_is_one_of_them():
    workers = build_workers(Threshold(target_density=0.5, selection="top_k"), specs_of([(100,)]), 1)
    largest = np.full(100, np.finfo(np.float32).max)
    exchanged, flags = exchange(workers, [[tf.constant(largest)]])
    assert not np.any(flags)
    np.testing.assert_allclose(flat(exchanged[0])[:50], largest[:50], rtol=1e-6)


@pytest.mark.parametrize("value", [1.0, 1e-30, 3e38, np.finfo(np.float32).max])
def test_values_of_one_magnitude_are_sent(value):
    (worker,) = build_workers(top_k(), specs_of([(SIZE,)]), 1)
    total = np.zeros(SIZE)
    for step in range(1, 61):
        given = value if step == 1 else 0.0
        exchanged, _ = exchange([worker], [[tf.fill([SIZE], given)]])
        total += flat(exchanged[0], tf.float64)
    unsent = worker.residual.numpy()
    np.testing.assert_allclose(total + unsent, value, rtol=1e-5)
    assert np.mean(abs(unsent), dtype=np.float64) < 0.1 * value


@pytest.mark.parametrize("number", [0, 1, COUNT - 1, COUNT + 1])
def test_few_values_that_differ_from_zero_are_sent_as_they_are(number):
    (worker,) = build_workers(top_k(), specs_of([(SIZE,)]), 1)
    gradient = np.zeros(SIZE, np.float32)
    gradient[:number] = -2.5
    exchanged, flags = exchange([worker], [[tf.constant(gradient)]])
    np.testing.assert_allclose(flat(exchanged[0]), gradient, rtol=1e-6)
    assert not np.any(flags)


@every_coding
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_value_that_is_not_finite_is_flagged_on_all_ranks(rng, value, coding):
    workers = build_workers(top_k(coding=coding), specs_of(SHAPES), 3)
    gradients = [gradients_of(rng, SHAPES) for _ in range(3)]
    gradients[1][4] = tf.fill(SHAPES[4], value)
    exchanged, flags = exchange(workers, gradients)
    for of_rank in flags:
        assert of_rank.numpy().tolist() == [0, 5, 0]
    assert np.isfinite(flat(exchanged[0])).all()
    assert all(np.isfinite(worker.residual).all() for worker in workers)


@pytest.mark.parametrize("shapes", [[(0,)], [(1,)], [(2,), (0, 3)], [(3,), (1,)]], ids=str)
def test_odd_buckets_are_exchanged(shapes):
    workers = build_workers(top_k(), specs_of(shapes), 2)
    total, given = 0, 0
    for step in range(6):
        gradients = [[tf.fill(shape, 1.0 + step) for shape in shapes]] * 2
        exchanged, flags = exchange(workers, gradients)
        assert [tuple(tensor.shape) for tensor in exchanged[0]] == shapes
        assert not np.any(flags)
        total, given = total + flat(exchanged[0]), given + 2 * flat(gradients[0])
    kept = sum(worker.residual.numpy() for worker in workers)
    np.testing.assert_allclose(total + kept, given, rtol=1e-6)


def test_a_resumed_worker_goes_on_with_the_same_bits(rng):
    template = top_k(residual_decay=0.9)
    workers, resumed = (build_workers(template, specs_of(SHAPES), 2) for _ in "ab")
    exchange(workers, [gradients_of(rng, SHAPES) for _ in range(2)])
    states = [worker.state() for worker in workers]
    for worker in resumed:
        worker.load_state(states)
    gradients = [gradients_of(rng, SHAPES) for _ in range(2)]
    (ours, _), (theirs, _) = exchange(workers, gradients), exchange(resumed, gradients)
    np.testing.assert_array_equal(flat(ours[0]), flat(theirs[0]))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_cannot_go_on_with_the_other_selection(rng, workers):
    by_tau = Threshold(target_density=DENSITY)
    for before, after in [(top_k(), by_tau), (by_tau, top_k())]:
        first = build_workers(before, specs_of(SHAPES), 1)
        exchange(first, [gradients_of(rng, SHAPES)])
        for worker in build_workers(after, specs_of(SHAPES), workers):
            with pytest.raises(ValueError, match="must use the same exchange as before"):
                worker.load_state([first[0].state()])


def test_config_has_the_selection_and_the_decay():
    config = top_k(residual_decay=0.95).clone().get_config()
    assert (config["selection"], config["residual_decay"]) == ("top_k", 0.95)


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ({"selection": "largest"}, 'selection must be "tau" or "top_k"'),
        ({"selection": "top_k", "tau": 0.1}, "Received: tau=0.1. Use target_density"),
        ({"residual_decay": 0}, "residual_decay must be above 0 and at most 1"),
        ({"residual_decay": 1.5}, "Received: residual_decay=1.5"),
        ({"residual_decay": "0.9"}, "Received: residual_decay='0.9'"),
    ],
    ids=str,
)
def test_unusable_arguments_are_refused(arguments, expected):
    with pytest.raises(ValueError, match=expected):
        Threshold(**arguments)
