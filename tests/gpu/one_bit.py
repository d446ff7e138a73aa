"""The one-bit kernels through their C interface, with NumPy arrays in and out."""

import ctypes
import importlib.util

import numpy as np

from tests.gpu.arrays import HostObject, Kernels, integers
from tests.gpu.devices import ROOT
from tests.gpu.formats import NUMBERS, STORAGE

RULES = {"mean": 0, "symmetric": 1}


def _layout_module():
    """Loads tf_onebit._layout alone, because importing tf_onebit takes TensorFlow."""
    spec = importlib.util.spec_from_file_location("layout", ROOT / "tf_onebit" / "_layout.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


layout = _layout_module()


class _DeviceLayout(ctypes.Structure):
    _fields_ = [("layout", ctypes.c_void_p), ("table", ctypes.c_void_p)]


class _Quantizer(ctypes.Structure):
    _fields_ = [
        ("rule", ctypes.c_int32),
        ("bits", ctypes.c_int32),
        ("residual_type", ctypes.c_int64),
        ("residual", ctypes.c_void_p),
        ("sum_of_squares", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
    ]


class OneBitKernels(Kernels):
    """The one-bit kernels for one layout.

    Methods take and return NumPy arrays. A residual is an array of the device, updated in place.
    """

    def __init__(
        self, device, layout, levels="mean", error_feedback=True, bits=1, misaligned=False
    ):
        super().__init__(device, misaligned)
        self.layout, self._bits = layout, bits
        self._rule, self._error_feedback = RULES[levels], error_feedback
        lists = layout.sizes, layout.row_sizes, layout.column_sizes, layout.shard_starts
        sizes, row_sizes, column_sizes, shard_starts = map(integers, lists)
        self._host_layout = HostObject(
            self,
            "layout",
            ctypes.c_int64(len(layout.sizes)),
            *(sizes, row_sizes, column_sizes),
            ctypes.c_int64(layout.world_size),
            shard_starts,
        )
        self.device_layout = ctypes.byref(
            _DeviceLayout(self._host_layout.object, device.pointer(self._host_layout.table))
        )

    def pointer_or_null(self, array):
        return ctypes.c_void_p(None) if array is None else self.pointer(array)

    def residual(self, size, dtype="float32"):
        return self.to_device(np.zeros(size, STORAGE[dtype]))

    def shard_columns(self, rank):
        return self.layout.shard_starts[rank + 1] - self.layout.shard_starts[rank]

    def quantizer(self, num_columns, residual, bits=1):
        """Returns the kernels' quantizer for some columns, and the array of its sum of squares."""
        scratch = self.scratch(self.integer("one_bit_scratch_bytes", ctypes.c_int64(num_columns)))
        squares = self.empty(1, np.float32)
        quantizer = _Quantizer(
            self._rule,
            bits,
            NUMBERS["bfloat16" if residual.dtype == STORAGE["bfloat16"] else "float32"],
            self.device.pointer(residual) if self._error_feedback else None,
            self.device.pointer(squares),
            self.device.pointer(scratch),
        )
        quantizer.arrays = residual, squares, scratch  # they must live as long
        return quantizer, squares

    def encode(self, gradients, residual, dtype="float32", scales=None):
        """Returns messages `[world_size, words]`, and the sum of squares of the new residual."""
        scales = None if scales is None else self.to_device(scales)
        gradients = [self.to_device(gradient) for gradient in gradients]
        messages = self.empty((self.layout.world_size, self.layout.worker_message_bytes // 4))
        squares = self._quantize(
            "one_bit_encode",
            self.layout.num_columns,
            residual,
            [
                ctypes.c_int32(NUMBERS[dtype]),
                self.pointers(gradients),
                self.pointer_or_null(scales),
            ],
            [self.pointer(messages)],
        )
        return self.numpy(messages), squares

    def decode_sum(self, messages, rank):
        """Returns the aggregate of a shard, and the sums of the plain values."""
        messages = self.to_device(messages)
        aggregate = self.empty(self.layout.shard_sizes[rank], np.float32)
        plain = self.empty(self.layout.plain_size, np.float32)
        arrays = map(self.pointer, (messages, aggregate, plain))
        self.call("one_bit_decode_sum", self.device_layout, ctypes.c_int64(rank), *arrays)
        return self.numpy(aggregate), self.numpy(plain)

    def encode_shard(self, aggregate, residual, rank):
        """Returns the message about a shard, `[bits, words]`, and the residual's sum of squares."""
        aggregate = self.to_device(aggregate)
        message = self.empty((self._bits, self.layout.shard_message_bytes // 4))
        squares = self._quantize(
            "one_bit_encode_shard",
            self.shard_columns(rank),
            residual,
            [ctypes.c_int64(rank), self.pointer(aggregate)],
            [self.pointer(message)],
            self._bits,
        )
        return self.numpy(message), squares

    def aggregate(self, messages, residual, rank):
        """Runs `decode_sum` and `encode_shard` in one: message, sum of squares and plain values."""
        messages = self.to_device(messages)
        message = self.empty((self._bits, self.layout.shard_message_bytes // 4))
        plain = self.empty(self.layout.plain_size, np.float32)
        squares = self._quantize(
            "one_bit_aggregate",
            self.shard_columns(rank),
            residual,
            [ctypes.c_int64(rank), self.pointer(messages)],
            [self.pointer(message), self.pointer(plain)],
            self._bits,
        )
        return self.numpy(message), squares, self.numpy(plain)

    def decode(self, messages, plain, scale=1.0, dtype="float32", scales=None):
        """Returns a list of gradients, flat."""
        scales = None if scales is None else self.to_device(scales)
        messages, plain = self.to_device(messages), self.to_device(plain)
        gradients = [self.empty(size, STORAGE[dtype]) for size in self.layout.sizes]
        self.call(
            "one_bit_decode",
            self.device_layout,
            ctypes.c_int32(NUMBERS[dtype]),
            self.pointer(messages),
            ctypes.c_int32(self._bits),
            self.pointer(plain),
            ctypes.c_float(scale),
            self.pointer_or_null(scales),
            self.pointers(gradients),
        )
        return [self.numpy(gradient) for gradient in gradients]

    def decode_add(self, variables, messages, plain, factor, scale=1.0, scales=None):
        """Adds to float32 arrays of the device."""
        scales = None if scales is None else self.to_device(scales)
        messages, plain = self.to_device(messages), self.to_device(plain)
        factor = self.to_device(np.float32([factor]))
        self.call(
            "one_bit_decode_add",
            self.device_layout,
            self.pointer(messages),
            ctypes.c_int32(self._bits),
            self.pointer(plain),
            ctypes.c_float(scale),
            self.pointer_or_null(scales),
            self.pointer(factor),
            self.pointers(variables),
        )

    def learn_scales(self, updates, squares, dtype="float32"):
        """Returns the averages of squares behind `squares`."""
        updates, squares = [self.to_device(update) for update in updates], self.to_device(squares)
        self.call(
            "one_bit_learn_scales",
            self.device_layout,
            ctypes.c_int32(NUMBERS[dtype]),
            self.pointers(updates),
            self.pointer(squares),
        )
        return self.numpy(squares)

    def _quantize(self, function, num_columns, residual, inputs, outputs, bits=1):
        quantizer, squares = self.quantizer(num_columns, residual, bits)
        self.call(function, self.device_layout, *inputs, ctypes.byref(quantizer), *outputs)
        return float(self.numpy(squares)[0])
