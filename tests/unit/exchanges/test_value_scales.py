"""Scales of the updates that 1-bit quantization exchanges."""

import numpy as np
import pytest
import tensorflow as tf

from tests.reference.one_bit import scales_of
from tests.support.gradients import ROUNDING, build_workers, exchange, specs_of
from tf_onebit import OneBit, WarmStart
from tf_onebit.collectives import lockstep
from tf_onebit.exchanges.value_scales import ValueScales
from tf_onebit.transforms import Momentum

SHAPES = [(40, 100), (7,)]
WARM = 3
NEVER = slice(5, 15)  # values of each row that never have an update


def updates_of(rng, sizes):
    """Returns updates of two workers, whose values have the relative sizes `sizes`."""
    return [
        [tf.constant(rng.normal(size=shape) * size, tf.float32) for shape, size in sizes]
        for _ in range(2)
    ]


def alike(workers, updates):
    """Runs a step of the warm-up, in which all workers have the first worker's updates.

    Returns the exchanged updates of each rank, and the flags.
    """
    results = lockstep.run([worker.run_alike(updates[0]) for worker in workers])
    exchanged, flags = zip(*results, strict=True)
    return list(exchanged), list(flags)


def exchange_alike(workers, rng, sizes):
    """Runs a step of the warm-up. Returns the updates, and what each worker gets."""
    updates = updates_of(rng, sizes)
    return updates[0], alike(workers, updates)[0]


def warm_workers(steps=WARM):
    one_bit = OneBit(moments="local", aggregate_bits=1)
    return build_workers(WarmStart(one_bit, steps), specs_of(SHAPES), 2)


def uneven(rng):
    """Returns sizes of values: some a hundred times larger than others, and some zero."""
    sizes = 10.0 ** rng.uniform(-2, 0, size=SHAPES[0])
    sizes[:, NEVER] = 0.0
    return [(SHAPES[0], sizes), (SHAPES[1], np.ones(7))]


def test_scaled_updates_are_quantized(rng):
    workers, sizes, means = warm_workers(), uneven(rng), []
    for _ in range(WARM):
        (update, _), exchanged = exchange_alike(workers, rng, sizes)
        means.append(update)
        for mine, _ in exchanged:
            np.testing.assert_array_equal(mine, update)
    scale = scales_of(means)
    plain = build_workers(OneBit(), specs_of(SHAPES), 2)
    for _ in range(3):  # the third needs the residuals of the second
        updates = updates_of(rng, sizes)
        exchanged, _ = exchange(workers, updates)
        divided = [[tf.constant(a / scale, tf.float32), b] for a, b in updates]
        expected, _ = exchange(plain, divided)
        np.testing.assert_allclose(exchanged[0][0], expected[0][0] * scale, rtol=2e-4, atol=1e-6)
        np.testing.assert_array_equal(exchanged[0][1], expected[0][1])
        np.testing.assert_array_equal(exchanged[0][0], exchanged[1][0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_updates_of_16_bits_are_scaled_beside_plain_ones(rng, dtype):
    template = WarmStart(OneBit(moments="local", aggregate_bits=1), 1)
    workers = build_workers(template, specs_of(SHAPES, dtype), 2)
    wide = build_workers(template, specs_of(SHAPES), 2)
    for run in (alike, exchange):
        updates = updates_of(rng, uneven(rng))
        narrow = [[tf.cast(update, dtype) for update in mine] for mine in updates]
        exchanged, _ = run(workers, narrow)
        expected, _ = run(wide, [[tf.cast(a, tf.float32) for a in mine] for mine in narrow])
    assert [tensor.dtype for tensor in exchanged[0]] == [dtype, dtype]
    for mine, other in zip(exchanged[0], expected[0], strict=True):
        mine = tf.cast(mine, tf.float32)
        # Rounded: the sums that scales are made of, the decoded values, and these times scales.
        np.testing.assert_allclose(mine, other, rtol=3 * ROUNDING[dtype], atol=1e-4)


def test_values_that_never_moved_hardly_move(rng):
    workers, sizes = warm_workers(), uneven(rng)
    for _ in range(WARM):
        exchange_alike(workers, rng, sizes)
    exchanged, _ = exchange(workers, updates_of(rng, sizes))
    # A hundredth of the root mean square, which is up to three times the mean.
    assert moved_without_update(exchanged) < 0.03
    exchanged, _ = exchange(build_workers(OneBit(), specs_of(SHAPES), 2), updates_of(rng, sizes))
    assert moved_without_update(exchanged) > 0.5


def moved_without_update(exchanged):
    """Returns how far values without update move, relative to all."""
    moved = np.abs(exchanged[0][0])
    return moved[:, NEVER].mean() / moved.mean()


def test_without_a_warm_start_updates_are_not_scaled(rng):
    workers = build_workers(OneBit(moments="local", aggregate_bits=1), specs_of(SHAPES), 2)
    plain = build_workers(OneBit(), specs_of(SHAPES), 2)
    for _ in range(2):
        updates = updates_of(rng, uneven(rng))
        for mine, other in zip(
            *(exchange(w, updates)[0][0] for w in (workers, plain)), strict=True
        ):
            np.testing.assert_array_equal(mine, other)


def test_scales_that_are_in_use_learn_no_more(rng):
    specs = specs_of(SHAPES)
    scales = ValueScales(specs, OneBit(moments="local").layout_of(specs, 2))
    (first,) = updates_of(rng, uneven(rng))[:1]
    scales.note(first)
    scales.make()
    values, before = scales.values().numpy(), scales.state()
    np.testing.assert_allclose(values.reshape(SHAPES[0]), scales_of(first[:1]), rtol=1e-5)
    scales.note([3 * update for update in first])
    scales.make()
    np.testing.assert_array_equal(scales.values(), values)
    for name, array in scales.state().items():
        np.testing.assert_array_equal(array, before[name])


def test_updates_that_are_not_finite_are_not_learned(rng):
    workers, sizes = warm_workers(), uneven(rng)
    exchange_alike(workers, rng, sizes)
    before = workers[0].state()
    spoiled = updates_of(rng, sizes)
    spoiled[0][0] = tf.fill(SHAPES[0], np.float32("nan"))
    with pytest.raises(tf.errors.InvalidArgumentError):
        alike(workers, spoiled)
    after = workers[0].state()
    (name,) = [name for name, array in before.items() if "scales/" in name and array.ndim]
    np.testing.assert_array_equal(before[name], after[name])
    assert np.any(before[name])


@pytest.mark.parametrize("world_size", [2, 3])
def test_scales_are_resumed(rng, world_size):
    workers, sizes = warm_workers(), uneven(rng)
    for _ in range(WARM):
        exchange_alike(workers, rng, sizes)
    exchange(workers, updates_of(rng, sizes))
    states = [worker.state() for worker in workers]
    template = WarmStart(OneBit(moments="local", aggregate_bits=1), WARM)
    resumed = build_workers(template, specs_of(SHAPES), world_size)
    for worker in resumed:
        # With the same number of workers, each reads its own state only.
        known = range(2) if world_size == 3 else [worker.rank]
        worker.load_state([state if i in known else {} for i, state in enumerate(states)])
    if world_size == 2:
        updates = updates_of(rng, sizes)
        for mine, other in zip(
            *(exchange(w, updates)[0][0] for w in (resumed, workers)), strict=True
        ):
            np.testing.assert_array_equal(mine, other)
    for worker in resumed:
        for name, array in worker.state().items():
            if "scales/" in name:
                np.testing.assert_array_equal(array, states[0][name])


def test_transforms_of_gradients_are_refused():
    with pytest.raises(ValueError, match='moments="local" workers exchange the updates.*Momentum'):
        OneBit(moments="local", transforms=[Momentum(0.9)])
