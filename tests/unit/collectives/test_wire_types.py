"""Types that a collective does not carry travel as others, exactly."""

import numpy as np
import pytest
import tensorflow as tf

from tf_onebit.collectives.tensorflow import CARRIED
from tf_onebit.collectives.wire_types import from_wire, to_wire

TYPES = [
    *("float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool"),
    *("complex64", "complex128"),
]


@pytest.mark.parametrize("name", TYPES)
def test_every_type_comes_back_exactly(name):
    dtype = tf.as_dtype(name)
    bits = np.arange(3 * 256 * 16, dtype=np.uint32) * np.uint32(2654435761)
    if dtype.size == 1:
        bits = np.arange(256, dtype=np.uint8)
    if dtype == tf.bool:
        bits = bits % 2
    tensor = tf.constant(np.ascontiguousarray(bits).view(dtype.as_numpy_dtype)[: 3 * 64])
    tensor = tf.reshape(tensor, [3, 64])
    wire = to_wire(tensor, CARRIED)
    assert wire.dtype in CARRIED
    assert wire.shape[:2] == tensor.shape
    back = from_wire(wire, dtype)
    assert back.dtype == dtype
    if dtype.size == 1 and dtype.is_floating:  # where all NaNs are equally good
        tensor, back = tf.cast(tensor, tf.float32), tf.cast(back, tf.float32)
        np.testing.assert_array_equal(back, tensor)
    else:
        assert back.numpy().tobytes() == tensor.numpy().tobytes()


def test_strings_are_refused_in_words():
    with pytest.raises(TypeError, match="Received: a tensor of type string"):
        to_wire(tf.constant(["a"]), CARRIED)
