"""Moves NumPy's arrays to the kernels of a device, and back."""

import ctypes

import numpy as np

from tests.gpu.devices import library_for


class Kernels:
    """The kernels of one device, called with arrays of that device.

    Args:
        device: `Emulated` or `Cuda`.
        misaligned: whether every array begins 4 bytes behind a boundary of 256.
    """

    def __init__(self, device, misaligned=False):
        self.library = library_for(device)
        self.device, self.misaligned = device, misaligned

    def to_device(self, values):
        """Copies values to the device."""
        values = np.ascontiguousarray(values)
        room = self.empty(values.shape, values.dtype)
        room[...] = self.device.array(values)
        return room

    def empty(self, shape, dtype=np.int32):
        """Returns an array on the device, filled with other values than the expected ones."""
        size, step = int(np.prod(shape)), max(1, 4 // np.dtype(dtype).itemsize)
        room = self.device.array(np.full(size + step, 85, dtype))
        return room[step * self.misaligned :][:size].reshape(shape)

    def numpy(self, array):
        return self.device.numpy(array)

    def pointer(self, array):
        return ctypes.c_void_p(self.device.pointer(array))

    def pointers(self, arrays):
        pointers = (ctypes.c_void_p * len(arrays))(*map(self.device.pointer, arrays))
        pointers.arrays = arrays  # they must live as long
        return pointers

    def call(self, function, *arguments):
        """Calls a function that launches kernels on the default stream."""
        function = getattr(self.library, function)
        function.restype = ctypes.c_char_p
        error = function(*arguments, ctypes.c_void_p(None))
        assert error is None, error.decode()

    def integer(self, function, *arguments):
        """Calls a function that returns an integer."""
        function = getattr(self.library, function)
        function.restype = ctypes.c_int64
        return function(*arguments)

    def scratch(self, size):
        return self.device.array(np.full(size, 85, np.uint8))


class HostObject:
    """A C++ object with a table, and its functions `<kind>_new`, `_delete` and `_table`.

    Attributes:
        object: its address.
        table: array of the device.
    """

    def __init__(self, kernels, kind, *arguments):
        self._kernels, self._kind = kernels, kind
        self._library = kernels.library
        new = getattr(self._library, f"{kind}_new")
        new.restype = ctypes.c_void_p
        self.object = ctypes.c_void_p(new(*arguments))
        table = np.zeros(kernels.integer(f"{kind}_table_size", self.object), np.int64)
        getattr(self._library, f"{kind}_table")(self.object, integers(table))
        self.table = kernels.device.array(table)

    def __del__(self):
        getattr(self._library, f"{self._kind}_delete")(self.object)


def integers(values):
    """Returns a list of int64 in host memory, as an argument."""
    return np.ascontiguousarray(values, np.int64).ctypes.data_as(ctypes.c_void_p)
