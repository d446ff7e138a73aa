"""The threshold kernels through their C interface, with NumPy arrays in and out."""

import ctypes

import numpy as np

from tests.gpu.arrays import HostObject, Kernels, integers
from tests.gpu.formats import NUMBERS, STORAGE

FLAG, WORDS, COUNT, EXCEEDING, STEP, SQUARES, HEADER_WORDS = range(7)


class ThresholdKernels(Kernels):
    """The threshold kernels for one list of sizes.

    Methods take and return NumPy arrays. A residual and variables are arrays of the device, updated
    in place.
    """

    def __init__(self, device, sizes, part_size=2**31, misaligned=False):
        super().__init__(device, misaligned)
        self.sizes, self.num_parts = sizes, max(1, -(-sum(sizes) // part_size))
        self.parts = HostObject(
            self,
            "parts",
            ctypes.c_int64(len(sizes)),
            integers(sizes),
            ctypes.c_int64(part_size),
        )
        self.arguments = self.parts.object, self.pointer(self.parts.table)

    def encode(
        self,
        gradients,
        residual,
        threshold,
        step,
        capacity,
        dtype="float32",
        magnitude=None,
        decay=1.0,
    ):
        """Returns messages `[parts, words]`. By default the magnitude is the threshold."""
        magnitude = threshold if magnitude is None else magnitude
        gradients = [self.to_device(gradient) for gradient in gradients]
        scalars = [self.to_device(np.float32([value])) for value in (threshold, magnitude, step)]
        message = self.empty((self.num_parts, HEADER_WORDS + capacity))
        scratch = self.scratch(self.integer("threshold_scratch_bytes", self.parts.object))
        self.call(
            "threshold_encode",
            *self.arguments,
            ctypes.c_int32(NUMBERS[dtype]),
            self.pointers(gradients),
            self.pointer(residual),
            *map(self.pointer, scalars),
            ctypes.c_float(decay),
            ctypes.c_int64(capacity),
            self.pointer(message),
            self.pointer(scratch),
        )
        return self.numpy(message)

    def decode_sum(self, messages, scale=1.0, dtype="float32"):
        """Returns a list of gradients, from messages `[number, parts, words]`."""
        messages = self.to_device(messages)
        gradients = [self.empty(size, STORAGE[dtype]) for size in self.sizes]
        self.call(
            "threshold_decode_sum",
            *self.arguments,
            ctypes.c_int32(NUMBERS[dtype]),
            *self.rows(messages),
            ctypes.c_float(scale),
            self.pointers(gradients),
        )
        return [self.numpy(gradient) for gradient in gradients]

    def decode_add(self, variables, messages, factor, scale=1.0):
        messages, factor = self.to_device(messages), self.to_device(np.float32([factor]))
        self.call(
            "threshold_decode_add",
            *self.arguments,
            *self.rows(messages),
            ctypes.c_float(scale),
            self.pointer(factor),
            self.pointers(variables),
        )

    def update(self, variables, messages, clears=False):
        messages = self.to_device(messages)
        self.call(
            "threshold_update",
            *self.arguments,
            *self.rows(messages),
            ctypes.c_int32(clears),
            self.pointers(variables),
        )

    def rows(self, messages):
        number, parts, words = messages.shape
        return self.pointer(messages), ctypes.c_int64(number * parts), ctypes.c_int64(words)
