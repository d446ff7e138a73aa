"""Rows of `gpu.py`: updates of momentum, Adam and AdaGrad, and of weights at the end of a block."""

import ctypes

import numpy as np
from gpu_row import Row

from tests.gpu.arrays import HostObject, Kernels, integers


def block_rows(device, num_values, rng):
    """Returns the rows of the update of all weights at the end of a block, at once and late."""
    kernels = Kernels(device)
    mean, change, variable, model, delta = (
        kernels.to_device(rng.standard_normal(num_values, np.float32)) for _ in range(5)
    )
    coefficients = np.float64([0.9, 1.0, 0.9, 1.0, 2.0])

    def run(function, flags, arrays):
        kernels.call(
            f"{function}_float32",
            ctypes.c_int64(1),
            kernels.pointers([mean]),
            integers([num_values]),
            coefficients.ctypes.data_as(ctypes.c_void_p),
            *map(ctypes.c_int32, flags),
            *(kernels.pointers([array]) for array in arrays),
        )

    def update():
        run("block_update", (1, 0), (variable, model, delta))

    def late_update():
        run("late_block_update", (1,), (change, variable, model, delta))

    return {
        # It reads mean, model and delta, and writes weights, model and delta.
        "block update": Row(update, 6 * mean.nbytes),
        # It also reads the change, and the weights.
        "late block update": Row(late_update, 8 * mean.nbytes),
    }


def moment_rows(device, num_values, rng):
    """Returns the rows of the updates of momentum, Adam and AdaGrad."""
    kernels = Kernels(device)
    gradient, average, square = (
        kernels.to_device(rng.random(num_values, np.float32)) for _ in range(3)
    )
    step, factor = (kernels.to_device(np.float32(n)) for n in ([-0.001, 0.5, 1.0], [-0.001]))
    update = kernels.empty(num_values, np.float32)
    one_part = ctypes.c_int64(2**63 - 1)
    run = HostObject(kernels, "parts", ctypes.c_int64(1), integers([num_values]), one_part)
    scratch = kernels.scratch(kernels.integer("adagrad_scratch_bytes", run.object))
    share, mean = (kernels.to_device(np.float64([value])) for value in (0.1, 0.5))
    root_sum = kernels.empty(1, np.float64)

    def momentum():
        kernels.call(
            "momentum",
            ctypes.c_int64(num_values),
            *map(kernels.pointer, (gradient, average)),
            ctypes.c_float(0.9),
            ctypes.c_int32(0),
            *map(kernels.pointer, (factor, update)),
        )

    def adam():
        kernels.call(
            "adam",
            ctypes.c_int64(num_values),
            *map(kernels.pointer, (gradient, average, square)),
            (ctypes.c_float * 3)(0.1, 0.001, 1e-7),
            *map(kernels.pointer, (step, update)),
        )

    def accumulate():
        arrays = run.table, gradient, share, square, root_sum, scratch
        kernels.call("adagrad_accumulate", run.object, *map(kernels.pointer, arrays))

    def normalize():
        kernels.call(
            "adagrad_normalize",
            run.object,
            *map(kernels.pointer, (gradient, square, mean)),
            ctypes.c_float(0.01),
            kernels.pointer(update),
        )

    return {
        "momentum": Row(momentum, 4 * update.nbytes),
        "Adam": Row(adam, 6 * update.nbytes),
        "AdaGrad, averages": Row(accumulate, 3 * update.nbytes),
        "AdaGrad, normalized": Row(normalize, 3 * update.nbytes),
    }
