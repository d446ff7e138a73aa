"""Residuals of OneBit in bfloat16: half the memory, and nothing is lost over time."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.gradients import as_float64, build_workers, exchange, gradients_of, specs_of
from tf_onebit import OneBit, WarmStart
from tf_onebit.exchanges import Bucketed
from tf_onebit.exchanges.schedule import innermost

SHAPES = [(31, 1), (10, 100), (3, 3, 4, 24), (33,)]
COLUMNS = {"min_column_size": 32, "max_column_size": 64, "min_size": 31}


def one_bit(residual_dtype="bfloat16", **arguments):
    return OneBit(residual_dtype=residual_dtype, **COLUMNS, **arguments)


def residuals_of(worker):
    return [worker.worker_residual.numpy(), worker.shard_residual.numpy()]


def test_residuals_take_half_the_memory():
    wide, narrow = (
        build_workers(one_bit(dtype), specs_of(SHAPES), 2)[0] for dtype in ("float32", "bfloat16")
    )
    for name in ("worker_residual", "shard_residual"):
        before, after = getattr(wide, name), getattr(narrow, name)
        assert after.dtype == tf.bfloat16 and after.shape == before.shape


def small_and_large(shape):
    """Returns a gradient every other value of which is a thousandth of the others."""
    i = np.arange(np.prod(shape)).reshape(shape)
    return tf.constant(np.where(i % 2, 1e-3, np.where(i % 4, 1.0, -1.0)), tf.float32)


def joined(gradients):
    """Returns the values of all gradients in columns: float64 array."""
    columns = zip(gradients, SHAPES, strict=True)
    return np.concatenate([as_float64(g).ravel() for g, shape in columns if len(shape) > 1])


@pytest.mark.parametrize("bits", [1, 2])
def test_all_gradients_are_what_was_applied_and_the_last_residuals(bits):
    """With the same gradients in every step, rounding to the nearest would lose a third."""
    workers = build_workers(one_bit(aggregate_bits=bits), specs_of(SHAPES), 3)
    given, magnitude, applied, steps = 0.0, 0.0, 0.0, 200
    for _ in range(steps):
        gradients = [list(map(small_and_large, SHAPES)) for _ in workers]
        exchanged, _ = exchange(workers, gradients)
        of_workers = [joined(mine) for mine in gradients]
        given = given + sum(of_workers)
        magnitude = magnitude + sum(map(np.abs, of_workers))
        applied = applied + joined(exchanged[0])
    pending = sum(worker.worker_residual.numpy().astype(np.float64) for worker in workers)
    pending = pending + np.concatenate(
        [worker.shard_residual.numpy().astype(np.float64) for worker in workers]
    )
    lost = given - applied - pending
    # Each rounding errs by up to a 128th of a residual, and errors have no direction.
    assert np.abs(lost).max() < 0.01 * magnitude.max()
    small = magnitude < 1.01e-3 * steps * len(workers)
    assert abs(lost[small].mean()) < 0.02 * steps * 1e-3 * len(workers)


def test_a_run_goes_on_with_the_same_bits(rng):
    workers = build_workers(Bucketed(one_bit()), specs_of(SHAPES), 2)
    steps = [[gradients_of(rng, SHAPES) for _ in workers] for _ in range(4)]
    for gradients in steps[:2]:
        exchange(workers, gradients)
    states = [worker.state() for worker in workers]
    assert all(array.dtype != tf.bfloat16 for state in states for array in state.values())
    resumed = build_workers(Bucketed(one_bit()), specs_of(SHAPES), 2)
    for worker in resumed:
        worker.load_state(states)
    for gradients in steps[2:]:
        expected, received = exchange(workers, gradients)[0], exchange(resumed, gradients)[0]
        for mine, other in zip(expected[0], received[0], strict=True):
            np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("before, after", [("float32", "bfloat16"), ("bfloat16", "float32")])
@pytest.mark.parametrize("world_size", [2, 3])
def test_a_run_goes_on_with_residuals_of_another_type(rng, before, after, world_size):
    workers = build_workers(one_bit(before), specs_of(SHAPES), 2)
    exchange(workers, [gradients_of(rng, SHAPES) for _ in workers])
    resumed = build_workers(one_bit(after), specs_of(SHAPES), world_size)
    for worker in resumed:
        worker.load_state([worker.state() for worker in workers])
    pending, restored = (
        sum(worker.worker_residual.numpy().astype(np.float64) for worker in group)
        for group in (workers, resumed)
    )
    np.testing.assert_allclose(restored, pending, rtol=2**-7, atol=2**-7)


def test_norms_are_those_of_the_stored_residuals(rng):
    (worker,) = build_workers(one_bit(), specs_of(SHAPES), 1)
    exchange([worker], [gradients_of(rng, SHAPES)])
    squares = sum(np.square(r.astype(np.float64)).sum() for r in residuals_of(worker))
    assert worker.residual_sum_of_squares() == pytest.approx(squares, rel=1e-5)
    by_name = [values for _, values in worker.residuals()]
    assert all(values.dtype == tf.float32 for values in by_name)
    assert sum(float(tf.reduce_sum(v**2)) for v in by_name) == pytest.approx(squares, rel=1e-5)


def test_settings_keep_it():
    template = WarmStart(one_bit(), steps=3).clone()
    assert innermost(template).residual_dtype == "bfloat16"
    assert OneBit.from_config({}).residual_dtype == "float32"


@pytest.mark.parametrize("dtype", ["float16", "int8", None, tf.bfloat16])
def test_other_types_are_refused(dtype):
    with pytest.raises(ValueError, match='must be "float32" or "bfloat16". Received: residual_dt'):
        OneBit(residual_dtype=dtype)
