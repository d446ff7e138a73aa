"""The types of gradients in NumPy, which stores bfloat16 as bits because it has no such type."""

import numpy as np

# By name: NumPy's type of the storage, and the kernels' number of the type.
STORAGE = {
    "float32": np.float32,
    "float64": np.float64,
    "float16": np.float16,
    "bfloat16": np.uint16,
}
NUMBERS = {"float32": 0, "float16": 1, "bfloat16": 2}


def to_storage(values, dtype):
    """Rounds values to a type, to nearest even."""
    if dtype != "bfloat16":
        return np.asarray(values).astype(STORAGE[dtype])
    values = np.asarray(values, np.float32)
    bits = values.view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def to_float64(stored, dtype):
    if dtype == "bfloat16":
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float64)
