"""The kernels of blockwise model-update filtering against their equations, to the last bit."""

import ctypes

import numpy as np
import pytest

from tests.gpu.arrays import Kernels, integers
from tests.gpu.formats import STORAGE, to_float64, to_storage
from tests.support.nightly import nightly

# Tiles of 2,048 values, whole and partial, and more tensors than one launch takes.
SIZES = [1, 0, 4096, 33, 5000, *[7] * 70]

every_dtype = pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
every_momentum = pytest.mark.parametrize("nesterov", [True, False])
every_mean = pytest.mark.parametrize("relative", [False, True])


class Blocks(Kernels):
    """Variables of one type and their state, on a device."""

    def __init__(self, device, rng, dtype, misaligned=False):
        super().__init__(device, misaligned)
        self.dtype, self.state = dtype, np.float64 if dtype == "float64" else np.float32

        def draw(storage):
            return [self.to_device(storage(rng.normal(size=size))) for size in SIZES]

        self.means, self.variables = (draw(lambda v: to_storage(v, dtype)) for _ in range(2))
        self.globals, self.deltas = (draw(lambda v: v.astype(self.state)) for _ in range(2))

    def run(self, function, lists, coefficients, *flags):
        """Calls `function` with the first of `lists`, then with the sizes and the other lists."""
        first, *others = map(self.pointers, lists)
        self.call(
            f"{function}_{self.dtype}",
            ctypes.c_int64(len(SIZES)),
            *(first, integers(SIZES)),
            np.float64(coefficients).ctypes.data_as(ctypes.c_void_p),
            *map(ctypes.c_int32, flags),
            *others,
        )

    def difference(self, scale, look_ahead, with_deltas=True):
        out = [self.empty(size, STORAGE[self.dtype]) for size in SIZES]
        self.call(
            f"block_difference_{self.dtype}",
            ctypes.c_int64(len(SIZES)),
            *map(self.pointers, (self.variables, self.globals)),
            self.pointers(self.deltas) if with_deltas else None,
            integers(SIZES),
            np.float64([scale, look_ahead]).ctypes.data_as(ctypes.c_void_p),
            self.pointers(out),
        )
        return self.values(out)

    def values(self, arrays):
        """Returns all values of a list, as they are stored."""
        return np.concatenate([self.numpy(array).copy() for array in arrays])

    def state_of(self, stored):
        return to_float64(stored, self.dtype).astype(self.state)


@every_dtype
@pytest.mark.parametrize("look_ahead", [0.5, *nightly(0.0, None)])
@pytest.mark.parametrize("misaligned", [False, True], ids=["aligned", "misaligned"])
def test_differences(device, rng, dtype, look_ahead, misaligned):
    blocks = Blocks(device, rng, dtype, misaligned)
    model, delta = blocks.values(blocks.globals), blocks.values(blocks.deltas)
    ahead = model + blocks.state(look_ahead or 0) * delta
    begin = blocks.state_of(to_storage(ahead, dtype))
    trained = blocks.state_of(blocks.values(blocks.variables)) - begin
    expected = to_storage(blocks.state(-0.3) * trained, dtype)
    received = blocks.difference(-0.3, look_ahead or 0.0, with_deltas=look_ahead is not None)
    np.testing.assert_array_equal(received, expected)


@every_dtype
@every_momentum
@every_mean
@pytest.mark.parametrize("zeta", [1.0, 0.8])
def test_block_updates(device, rng, dtype, nesterov, relative, zeta):
    blocks = Blocks(device, rng, dtype)
    eta, ahead, rest, whole = map(blocks.state, (0.9, 0.5, blocks.state(zeta) - 1, zeta))
    model, delta = blocks.values(blocks.globals), blocks.values(blocks.deltas)
    mean = blocks.state_of(blocks.values(blocks.means))
    begin = blocks.state_of(to_storage(model + ahead * delta, dtype))
    bar, update = (begin + mean, mean) if relative else (mean, mean - begin)
    base = bar + rest * update
    new_delta = whole * update + eta * delta
    variable = base + eta * (new_delta if nesterov else delta)
    lists = blocks.means, blocks.variables, blocks.globals, blocks.deltas
    blocks.run("block_update", lists, [0.9, zeta, 0.5], nesterov, relative)
    np.testing.assert_array_equal(blocks.values(blocks.variables), to_storage(variable, dtype))
    np.testing.assert_array_equal(blocks.values(blocks.deltas), new_delta)
    np.testing.assert_array_equal(blocks.values(blocks.globals), base if nesterov else variable)


@every_dtype
@every_momentum
@pytest.mark.parametrize("inverse", [4.0, *nightly(0.0)])
def test_late_block_updates(device, rng, dtype, nesterov, inverse):
    late, whole = Blocks(device, rng, dtype), Blocks(device, rng, dtype)
    model, delta = late.values(late.globals), late.values(late.deltas)
    sums, changes = (late.state_of(late.values(late.means)) for _ in range(2))
    begin = late.state_of(to_storage(model + late.state(0.5) * delta, dtype))
    variable = late.state_of(late.values(late.variables))
    learned = (variable - begin) - late.state(inverse) * changes
    # Where the block ends at once, the variables are the look-ahead.
    whole.globals, whole.deltas = (
        [whole.to_device(late.numpy(array).copy()) for array in list_]
        for list_ in (late.globals, late.deltas)
    )
    mean = to_storage(late.state(1.25) * sums, dtype)
    ends = np.cumsum([0, *SIZES])
    whole.means = [
        whole.to_device(np.ascontiguousarray(mean[begin:end]))
        for begin, end in zip(ends[:-1], ends[1:], strict=True)
    ]
    lists = whole.means, whole.variables, whole.globals, whole.deltas
    whole.run("block_update", lists, [0.9, 0.8, 0.5], nesterov, True)
    lists = late.means, late.means, late.variables, late.globals, late.deltas
    late.run("late_block_update", lists, [0.9, 0.8, 0.5, 1.25, inverse], nesterov)
    ahead = late.state_of(whole.values(whole.variables))
    np.testing.assert_array_equal(late.values(late.variables), to_storage(ahead + learned, dtype))
    np.testing.assert_array_equal(late.values(late.globals), whole.values(whole.globals))
    np.testing.assert_array_equal(late.values(late.deltas), whole.values(whole.deltas))


@every_dtype
@every_mean
@pytest.mark.parametrize("floor", [0.3, -1.0])
def test_moments(device, rng, dtype, relative, floor):
    blocks = Blocks(device, rng, dtype)
    begin, mean = blocks.values(blocks.globals), blocks.state_of(blocks.values(blocks.means))
    bar = begin + mean if relative else mean
    moment = bar + blocks.state(1.7) * (bar - begin)
    if floor >= 0:
        moment = np.maximum(moment, blocks.state(floor) * begin)
    lists = blocks.means, blocks.variables, blocks.globals
    blocks.run("moments_update", lists, [1.7, floor], relative)
    expected = to_storage(moment, dtype)
    np.testing.assert_array_equal(blocks.values(blocks.variables), expected)
    np.testing.assert_array_equal(blocks.values(blocks.globals), blocks.state_of(expected))
