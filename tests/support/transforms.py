"""Transforms for tests.

Their classes are at the top of a module, so that configurations find them.
"""

import tensorflow as tf

from tf_onebit.collectives.requests import AllReduce
from tf_onebit.transforms import Transform


class DivideByTotal(Transform):
    """A transform that divides by the sum of all magnitudes, which takes a collective."""

    def __init__(self, factor=0.01):
        super().__init__()
        self.factor = factor

    def get_config(self):
        return {"factor": self.factor}

    def build(self, layout, rank, scope):
        self.scope = scope
        self.world_size = layout.world_size

    def transform(self, aggregate, plain):
        mine = tf.reduce_sum(tf.abs(aggregate))
        (total,) = yield AllReduce([mine], f"{self.scope}/total")
        divisor = self.factor * (total + tf.reduce_sum(tf.abs(plain)))
        return aggregate / divisor, plain / divisor

    def bytes_sent(self):
        return 2 * (self.world_size - 1) * tf.float32.size // self.world_size


class DividesByBatchSize(Transform):
    """A transform that divides by the number of samples."""

    def get_config(self):
        return {}

    def build(self, layout, rank, scope):
        self.samples = tf.Variable(1, dtype=tf.int64, trainable=False)

    def transform(self, aggregate, plain):
        yield from ()
        samples = tf.cast(self.samples, tf.float32)
        return aggregate / samples, plain / samples

    def set_global_batch_size(self, samples):
        self.samples.assign(samples)
