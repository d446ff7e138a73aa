"""Comparison of arrays to the last bit."""

import numpy as np


def assert_same_bits(arrays, others):
    """Asserts that two lists of arrays, or of what becomes an array, have equal values."""
    for array, other in zip(arrays, others, strict=True):
        np.testing.assert_array_equal(array, other)
