"""The kernels of transforms against float32 arithmetic in NumPy, and their other promises."""

import ctypes

import numpy as np
import pytest

from tests.gpu.arrays import HostObject, Kernels, integers

RUNS = [5, 0, 4096, 9000, 1, 33]
ONE_PART = 2**63 - 1


class Runs(Kernels):
    """Runs of values, one after another, on a device."""

    def __init__(self, device, sizes=RUNS, misaligned=False):
        super().__init__(device, misaligned)
        arguments = ctypes.c_int64(len(sizes)), integers(sizes), ctypes.c_int64(ONE_PART)
        self.sizes, self.parts = sizes, HostObject(self, "parts", *arguments)

    def accumulate(self, gradient, average, share):
        gradient, share = self.to_device(gradient), self.to_device(np.float64([share]))
        sums = self.empty(len(self.sizes), np.float64)
        scratch = self.scratch(self.integer("adagrad_scratch_bytes", self.parts.object))
        arrays = self.parts.table, gradient, share, average, sums, scratch
        self.call("adagrad_accumulate", self.parts.object, *map(self.pointer, arrays))
        return self.numpy(sums)

    def normalize(self, gradient, average, means, epsilon, in_place):
        gradient, means = self.to_device(gradient), self.to_device(np.float64(means))
        out = gradient if in_place else self.empty(gradient.shape, np.float32)
        self.call(
            "adagrad_normalize",
            self.parts.object,
            *map(self.pointer, (gradient, average, means)),
            ctypes.c_float(epsilon),
            self.pointer(out),
        )
        return self.numpy(out)

    def momentum(self, gradient, velocity, momentum, nesterov, factor=1.0):
        gradient, factor = self.to_device(gradient), self.to_device(np.float32([factor]))
        out = self.empty(gradient.shape, np.float32)
        self.call(
            "momentum",
            ctypes.c_int64(gradient.size),
            *map(self.pointer, (gradient, velocity)),
            ctypes.c_float(momentum),
            ctypes.c_int32(nesterov),
            *map(self.pointer, (factor, out)),
        )
        return self.numpy(out)

    def adam(self, gradient, average, square, rule, step, in_place):
        gradient, step = self.to_device(gradient), self.to_device(step)
        out = gradient if in_place else self.empty(gradient.shape, np.float32)
        self.call(
            "adam",
            ctypes.c_int64(gradient.size),
            *map(self.pointer, (gradient, average, square)),
            (ctypes.c_float * 3)(*rule),
            *map(self.pointer, (step, out)),
        )
        return self.numpy(out)


def split(values):
    return np.split(values, np.cumsum(RUNS)[:-1])


@pytest.mark.parametrize("misaligned", [False, True], ids=["aligned", "misaligned"])
def test_averages_and_sums_of_their_roots(device, rng, misaligned):
    runs = Runs(device, misaligned=misaligned)
    before = rng.uniform(0, 2, sum(RUNS)).astype(np.float32)
    gradient = rng.normal(size=sum(RUNS)).astype(np.float32)
    share = np.float32(0.1)
    expected = before + share * (gradient * gradient - before)
    gradient[7], gradient[5000] = np.nan, 1e30
    expected[7], expected[5000] = before[7], before[5000]
    average = runs.to_device(before)
    sums = runs.accumulate(gradient, average, 0.1)
    np.testing.assert_array_equal(runs.numpy(average), expected)
    roots = [np.sqrt(run.astype(np.float64)).sum() for run in split(expected)]
    np.testing.assert_allclose(sums, roots, rtol=1e-6)


@pytest.mark.parametrize("in_place", [False, True])
def test_gradients_in_units_of_their_deviation(device, rng, in_place):
    runs = Runs(device)
    average = rng.uniform(0, 2, sum(RUNS)).astype(np.float32)
    average[::9] = 0
    gradient = rng.normal(size=sum(RUNS)).astype(np.float32)
    means = [0.5, 1.0, 0.0, 2.0, 1.0, 0.7]
    result = runs.normalize(gradient, runs.to_device(average), means, 0.01, in_place)
    expected = []
    for mean, mine, squares in zip(means, split(gradient), split(average), strict=True):
        per_mean, floor = (np.float32(1 / mean), np.float32(0.01)) if mean else (0, np.float32(1))
        expected.append(mine / np.maximum(np.sqrt(squares) * per_mean, floor))
    np.testing.assert_array_equal(result, np.concatenate(expected))


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("size", [0, 3, 70_000])
def test_velocities(device, rng, size, nesterov):
    runs = Runs(device)
    before, gradient = rng.normal(size=(2, size)).astype(np.float32)
    decay, factor = np.float32(0.9), np.float32(-0.3)
    moved = decay * before + factor * gradient
    expected = decay * moved + factor * gradient if nesterov else moved
    velocity = runs.to_device(before)
    out = runs.momentum(gradient, velocity, 0.9, nesterov, factor)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(runs.numpy(velocity), moved)


def test_a_velocity_that_would_not_be_finite_stays(device):
    runs = Runs(device)
    velocity = runs.to_device(np.float32([1, 2, 3]))
    runs.momentum(np.float32([np.inf, 1, np.nan]), velocity, 0.5, False)
    np.testing.assert_array_equal(runs.numpy(velocity), [1, 2, 3])


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize("size", [0, 3, 70_000])
def test_updates_of_adam(device, rng, size, noise, in_place):
    runs = Runs(device)
    gradient, before = rng.normal(size=(2, size)).astype(np.float32)
    square_before = rng.uniform(0, 2, size).astype(np.float32)
    gradient[::1000], gradient[1::1000] = np.inf, 1e30  # the latter's square is infinite
    rule = share, share_of_square, epsilon = np.float32([0.1, 0.01, 1e-3])
    step = factor, noise, unbias = np.float32([-0.3, noise, 1.5])
    least = np.float32(0.01 * (0.99 - 0.81) / (0.99 * 0.01)) if noise else np.float32(0)
    with np.errstate(over="ignore", invalid="ignore"):
        average = before + share * (gradient - before)
        deviation = gradient - unbias * before
        now = gradient * gradient - noise * (deviation * deviation)
        square = square_before + share_of_square * (now - square_before)
        bound = least * (average * average)
        square = np.where(bound > square, bound, square)
        expected = average * factor / (np.sqrt(square) + epsilon)
    kept = ~np.isfinite(square)
    average[kept], square[kept], expected[kept] = before[kept], square_before[kept], np.nan
    moments = [runs.to_device(values) for values in (before, square_before)]
    out = runs.adam(gradient, *moments, rule, step, in_place)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(runs.numpy(moments[0]), average)
    np.testing.assert_array_equal(runs.numpy(moments[1]), square)


def test_more_runs_than_a_launch_takes(device, rng):
    sizes = [40] * 150
    runs = Runs(device, sizes)
    average = rng.uniform(0.1, 2, sum(sizes)).astype(np.float32)
    means = rng.uniform(0.1, 2, len(sizes))
    result = runs.normalize(
        np.ones(sum(sizes), np.float32), runs.to_device(average), means, 1e-6, False
    )
    expected = np.repeat(means, 40) / np.sqrt(average)
    np.testing.assert_allclose(result, expected, rtol=1e-6)
