"""BFloat16: an all-reduce of half the bytes."""

import tensorflow as tf

from tf_onebit.exchanges.full_precision import FullPrecision


class BFloat16(FullPrecision):
    """Sums gradients in bfloat16: 8 bits of precision in the range of float32, without feedback.

    For what must keep its relative precision in every value, however small.

    Args:
        bucket_bytes: see `Exchange`.

    Example:
        >>> BFloat16().get_config()
        {'bucket_bytes': 33554432}
    """

    def compress(self, gradient):
        return tf.cast(gradient, tf.bfloat16), gradient.dtype

    def decompress(self, total, context):
        return tf.cast(total, context)
