"""Conversion of types that a collective does not carry."""

from collections.abc import Collection

import tensorflow as tf

# By bytes per value. Smaller values are widened, because a tensor may have an odd number of them.
_SAME_SIZE = {2: tf.float16, 4: tf.int32, 8: tf.int64, 16: tf.int64}


def to_wire(tensor: tf.Tensor, carried: Collection[tf.DType]) -> tf.Tensor:
    """Converts a tensor to one of the types that a collective carries.

    Values of 2 bytes and more keep their bits. Smaller ones become float32, which holds them
    exactly. A complex128 becomes two int64 in a last dimension.

    Args:
        tensor: tensor of numbers or booleans.
        carried: collection of the `tf.DType` that are sent unchanged.

    Returns:
        A tensor of one of `carried`, or of float16, float32, int32 or int64.

    Raises:
        TypeError: if the values are neither numbers nor booleans.
    """
    dtype = tensor.dtype
    if dtype in carried:
        return tensor
    if not (dtype.is_bool or dtype.is_integer or dtype.is_floating or dtype.is_complex):
        raise TypeError(
            f"Workers can only exchange numbers. Received: a tensor of type {dtype.name}. Strings "
            "and objects cannot be sent. Turn them into numbers first, for example with "
            "keras.layers.StringLookup."
        )
    if dtype.size in _SAME_SIZE:
        return tf.bitcast(tensor, _SAME_SIZE[dtype.size])
    return tf.cast(tensor, tf.float32)


def from_wire(tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Inverts `to_wire`. Returns a tensor of the type `dtype`."""
    if tensor.dtype == dtype:
        return tensor
    return tf.bitcast(tensor, dtype) if dtype.size in _SAME_SIZE else tf.cast(tensor, dtype)
