"""The state of exchanges survives, also when the number of workers changes."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.support.nightly import nightly, nightly_rows
from tests.support.ranks import digest
from tf_onebit import FullPrecision, Local, OneBit, Threshold, WarmStart
from tf_onebit._training.gradient_exchange import GradientExchange
from tf_onebit.collectives import lockstep
from tf_onebit.collectives.lockstep import LockstepEngine
from tf_onebit.exchanges import Bucketed, GradientSpec
from tf_onebit.transforms import Momentum, NormalizedAdaGrad

SPECS = [
    GradientSpec("first", (64, 48), "float32"),
    GradientSpec("bias", (48,), "float32"),
    GradientSpec("second", (33, 100), "float32"),
]
EXCHANGES = {
    "full_precision": FullPrecision(),
    "local": Local(),
    "one_bit": OneBit(),
    "buckets": OneBit(bucket_bytes=4096),
    "without_error_feedback": OneBit(error_feedback=False),
    "warming": WarmStart(OneBit(), steps=10),
    "warmed": WarmStart(OneBit(), steps=1),
    "transformed": OneBit(transforms=[NormalizedAdaGrad(50, 8), Momentum(0.5)]),
    "warming_transformed": WarmStart(
        OneBit(local_transforms=[NormalizedAdaGrad(50, 8)], transforms=[Momentum(0.5)]), steps=4
    ),
    "threshold": Threshold(1.0),
    "density": Threshold(target_density=0.05),
    "density_in_buckets": Threshold(target_density=0.05, coding="golomb_rice", bucket_bytes=4096),
    "threshold_warmed": WarmStart(Threshold(target_density=0.05), steps=1),
}


def build(name, world_size):
    exchanges = [Bucketed(EXCHANGES[name]) for _ in range(world_size)]
    for rank, exchange in enumerate(exchanges):
        exchange.build(SPECS, rank, world_size, "state")
    return exchanges


def gradients(step, rank):
    rng = np.random.default_rng([step, rank])
    return [tf.constant(rng.standard_normal(spec.shape), tf.float32) for spec in SPECS]


def run(exchanges, steps, scale=1.0):
    """Returns the exchanged gradients of every step on rank 0."""
    exchanged = []
    for step in steps:
        given = [e.run(gradients(step, rank), scale) for rank, e in enumerate(exchanges)]
        exchanged.append(lockstep.run(given)[0][0])
    return exchanged


@pytest.mark.parametrize("name", EXCHANGES)
@pytest.mark.parametrize("world_size", [3, *nightly(1)])
def test_resumed_exchanges_go_on_as_before(name, world_size):
    exchanges, resumed = build(name, world_size), build(name, world_size)
    run(exchanges, range(3))
    states = [exchange.state() for exchange in exchanges]
    for exchange in resumed:
        exchange.load_state(states)
    for mine, theirs in zip(run(exchanges, range(3, 6)), run(resumed, range(3, 6)), strict=True):
        assert digest(mine) == digest(theirs)


def unsent(exchanges):
    """Returns what all workers together have not sent yet, by bucket and stage."""
    buckets = zip(
        *([bucket.exchange for bucket in exchange.buckets] for exchange in exchanges), strict=True
    )
    total = []
    for workers in buckets:
        if isinstance(workers[0], Threshold):
            total.append(np.sum([np.float64(w.residual) for w in workers], axis=0))
            continue
        total.append(np.sum([np.float64(w.worker_residual) for w in workers], axis=0))
        total.append(np.concatenate([w.shard_residual for w in workers]))
    return total


WITH_RESIDUALS = [
    *("one_bit", "buckets", "warmed", "without_error_feedback"),
    *("threshold", "density_in_buckets", "threshold_warmed"),
]
CHANGES = [(2, 3), (4, 2), (3, 1), (1, 4)]
# Each exchange, each change of the number of workers, and each ratio.
USUAL = [
    ("one_bit", 2, 3, 1.5),
    ("buckets", 4, 2, 1.5),
    ("warmed", 3, 1, 1.0),
    ("without_error_feedback", 1, 4, 1.5),
    ("threshold", 1, 4, 1.0),
    ("density_in_buckets", 2, 3, 1.5),
    ("threshold_warmed", 4, 2, 1.0),
]
OTHERS = [
    case
    for name, change, ratio in itertools.product(WITH_RESIDUALS, CHANGES, [1.0, 1.5])
    if (case := (name, *change, ratio)) not in USUAL
]


@pytest.mark.parametrize("name, before, after, ratio", [*USUAL, *nightly_rows(*OTHERS)])
def test_pending_update_is_conserved_by_another_number_of_workers(name, before, after, ratio):
    exchanges, resumed = build(name, before), build(name, after)
    run(exchanges, range(3))
    states = [exchange.state() for exchange in exchanges]
    for exchange in resumed:
        exchange.load_state(states, ratio)
    for mine, expected in zip(unsent(resumed), unsent(exchanges), strict=True):
        np.testing.assert_allclose(mine, ratio * expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("before, after", [(2, 3), (3, 1), *nightly_rows((4, 2), (1, 4))])
def test_tau_and_capacity_stay_common_to_all_when_the_number_of_workers_changes(before, after):
    exchanges, resumed = build("density_in_buckets", before), build("density_in_buckets", after)
    run(exchanges, range(3))
    for exchange in resumed:
        exchange.load_state([e.state() for e in exchanges])
    for step in (None, 3, 4):
        if step is not None:
            run(resumed, [step])
        first, *others = [exchange.state() for exchange in resumed]
        for name in (n for n in first if n.endswith(("tau", "capacity"))):
            assert np.any(first[name])
            for other in others:
                np.testing.assert_array_equal(other[name], first[name])


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_a_single_worker_sends_what_several_had_not_sent(scale):
    exchanges = build("one_bit", 2)
    run(exchanges, range(3))
    states = [exchange.state() for exchange in exchanges]
    variables = [tf.Variable(tf.zeros(spec.shape), name=spec.name) for spec in SPECS]
    alone = GradientExchange(OneBit(), LockstepEngine(["CPU:0"]), mean=True)
    alone.load_states([states], scale)
    zeros = [tf.zeros(spec.shape) for spec in SPECS]
    sent = [alone([zeros], variables)[0] for _ in range(2)]
    (expected,) = build("one_bit", 1)
    expected.load_state(states, scale)
    for gradients in sent:
        ((others, _),) = lockstep.run([expected.run(zeros)])
        assert digest(gradients) == digest(others)
    assert all(np.any(gradient) for gradient in (sent[0][0], sent[0][2]))  # these are quantized


@pytest.mark.parametrize("ratio", [0.5, 2.0])
def test_residuals_follow_the_scale_of_gradients(ratio):
    exchanges, resumed = build("one_bit", 2), build("one_bit", 2)
    run(exchanges, range(3))
    for exchange in resumed:
        exchange.load_state([e.state() for e in exchanges], ratio)
    for mine, expected in zip(unsent(resumed), unsent(exchanges), strict=True):
        np.testing.assert_allclose(mine, ratio * expected)


def test_warm_start_goes_on_counting():
    exchanges = build("warming", 2)
    run(exchanges, range(3))
    resumed = build("warming", 3)
    for exchange in resumed:
        exchange.load_state([e.state() for e in exchanges])
    assert resumed[2].state()["bucket_0/progress"] == 3


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("one_bit", "threshold"),
        ("threshold", "one_bit"),
        ("threshold", "full_precision"),
        ("density", "density_in_buckets"),
        ("warmed", "one_bit"),
    ],
)
@pytest.mark.parametrize("world_size", [2, 3])
def test_another_exchange_does_not_lose_what_was_not_sent(before, after, world_size):
    states = [exchange.state() for exchange in build(before, 2)]
    for exchange in build(after, world_size):
        with pytest.raises(ValueError, match="must use the same exchange as before"):
            exchange.load_state(states)
