"""Local: nothing is exchanged."""

import tensorflow as tf

from tf_onebit.exchanges.base import Exchange


class Local(Exchange):
    """Leaves every worker its own gradients: workers train apart.

    For methods that synchronize the workers' models now and then, in place of their gradients.
    Whatever the sum over the workers would be scaled to, the own gradients are scaled as if all
    workers had the same: the mean becomes the local mean.

    Example:
        >>> Local().get_config()
        {}
    """

    dtypes = ("float64", "float32", "float16", "bfloat16")
    takes_sparse = True
    carries_flags = True
    can_be_delayed = False
    trains_apart = True

    def __init__(self):
        super().__init__(bucket_bytes=2**62)

    def get_config(self):
        return {}

    def encode(self, gradients):
        return list(gradients)

    def deliver(self, message, like, scale):
        yield from ()  # a generator that asks for nothing
        factor = self.world_size * scale
        return [_scaled(g, factor) for g in message], tf.zeros([self.world_size], tf.int32)

    def bytes_sent(self):
        return 0

    def expected_bytes(self, specs, world_size):
        return {}


def _scaled(gradient, factor):
    if isinstance(gradient, tf.IndexedSlices):
        values = _scaled(gradient.values, factor)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)
