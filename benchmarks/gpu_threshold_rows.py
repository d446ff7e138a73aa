"""Rows of `gpu.py`: the kernels of threshold-sparse updates."""

import ctypes
import itertools

import numpy as np
from gpu_row import FLOAT_BYTES, WORLD_SIZE, Row

from tests.gpu.threshold import COUNT, HEADER_WORDS, STEP, ThresholdKernels

DENSITY = 1e-3
TAU = 1.0


def threshold_inputs(num_values, rng):
    """Returns inputs of the threshold kernels, as NumPy's arrays.

    Launches add the gradient to the residual and subtract it in turn. Each sends the same values,
    and each second one leaves the residual as it was.

    Args:
        num_values: of a worker.
        rng: NumPy generator.

    Returns:
        Gradient, residual and the messages of all workers.
    """
    is_sent = rng.random(num_values, np.float32) < DENSITY
    noise, kept = (0.1 * TAU * rng.standard_normal(num_values, np.float32) for _ in range(2))
    signed_tau = np.where(noise < 0, np.float32(-TAU), np.float32(TAU))
    gradient = np.where(is_sent, 1.5 * signed_tau, noise)
    residual = np.where(is_sent, -0.25 * signed_tau, kept)
    words = HEADER_WORDS + int(1.2 * DENSITY * num_values)
    messages = np.zeros((WORLD_SIZE, 1, words), np.int32)
    for message in messages[:, 0]:
        codes = np.flatnonzero(rng.random(num_values, np.float32) < DENSITY)
        signs = rng.integers(2, size=codes.size) << 31
        codes = (codes | signs)[: words - HEADER_WORDS].astype(np.uint32)
        message[COUNT], message[STEP] = codes.size, np.float32(TAU).view(np.int32)
        message[HEADER_WORDS : HEADER_WORDS + codes.size] = codes.view(np.int32)
    return gradient, residual, messages


def threshold_rows(device, num_values, rng):
    kernels = ThresholdKernels(device, [num_values])
    gradient, residual, received = threshold_inputs(num_values, rng)
    num_received = int(received[..., COUNT].sum())
    pointers = itertools.cycle(
        [kernels.pointers([device.array(values)]) for values in (gradient, -gradient)]
    )
    residual, received = kernels.to_device(residual), kernels.to_device(received)
    tau, factor = kernels.to_device(np.float32([TAU])), kernels.to_device(np.float32([1e-6]))
    message = kernels.empty(received.shape[1:])
    scratch = kernels.scratch(kernels.integer("threshold_scratch_bytes", kernels.parts.object))
    sums = kernels.empty(num_values, np.float32)

    def encode():
        kernels.call(
            "threshold_encode",
            *kernels.arguments,
            ctypes.c_int32(0),
            next(pointers),
            *map(kernels.pointer, (residual, tau, tau, tau)),
            ctypes.c_float(1.0),
            ctypes.c_int64(message.size - HEADER_WORDS),
            *map(kernels.pointer, (message, scratch)),
        )

    def decode_sum():
        kernels.call(
            "threshold_decode_sum",
            *kernels.arguments,
            ctypes.c_int32(0),
            *kernels.rows(received),
            ctypes.c_float(1 / WORLD_SIZE),
            kernels.pointers([sums]),
        )

    def decode_add():
        kernels.call(
            "threshold_decode_add",
            *kernels.arguments,
            *kernels.rows(received),
            ctypes.c_float(1 / WORLD_SIZE),
            kernels.pointer(factor),
            kernels.pointers([sums]),
        )

    return {
        "threshold encode": Row(encode, 3 * gradient.nbytes + message.nbytes),
        "threshold decode and sum of 8": Row(decode_sum, sums.nbytes + received.nbytes),
        "threshold decode and add of 8": Row(
            decode_add, received.nbytes + 2 * FLOAT_BYTES * num_received
        ),
    }
