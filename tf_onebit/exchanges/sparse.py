"""SparseGather: gradients of embeddings, exchanged exactly."""

import tensorflow as tf

from tf_onebit.collectives.requests import AllGather
from tf_onebit.exchanges.base import Exchange
from tf_onebit.exchanges.finite import not_finite_flag, with_overflow


class SparseGather(Exchange):
    """Sums `tf.IndexedSlices` of all workers exactly: gathers the rows, then adds equal ones.

    Each row of the result has another index, so that optimizers which are not linear in the
    gradient (Adam, AdaGrad) see the whole gradient of a row at once.
    """

    def __init__(self):
        super().__init__(bucket_bytes=1)

    def get_config(self):
        return {}

    def create_state(self):
        self._bytes_sent = tf.Variable(0, dtype=tf.int64, trainable=False)

    def exchange(self, gradients, scale=1.0):
        flags = yield AllGather(not_finite_flag(gradients)[tf.newaxis], self.request_name("flags"))
        exchanged, sizes_bytes = [], [tf.constant(flags.dtype.size, tf.int64)]
        for i, gradient in enumerate(gradients):
            values = yield self._gather(gradient.values, f"values_{i}")
            indices = yield self._gather(gradient.indices, f"indices_{i}")
            for tensor in (gradient.values, gradient.indices):
                sizes_bytes.append(tf.size(tensor, tf.int64) * tensor.dtype.size)
            rows, positions = tf.unique(indices)
            sums = tf.math.unsorted_segment_sum(values, positions, tf.size(rows))
            exchanged.append(tf.IndexedSlices(sums * scale, rows, gradient.dense_shape))
        self._bytes_sent.assign((self.world_size - 1) * tf.add_n(sizes_bytes))
        return exchanged, with_overflow(flags, exchanged)

    def _gather(self, tensor, stage):
        return AllGather(tensor, self.request_name(stage), uneven=True)

    def bytes_sent(self):
        return int(self._bytes_sent)
