"""An exchange of your own: the largest values of each gradient, with error feedback."""

import tensorflow as tf

import tf_onebit
from tf_onebit.collectives import AllGather


class TopK(tf_onebit.Exchange):
    """Sends the k largest values of each gradient. The others wait in a residual."""

    def __init__(self, k=100, bucket_bytes=32 * 2**20, exclude=()):
        super().__init__(bucket_bytes, exclude)
        self.k = k

    def get_config(self):
        return {"k": self.k, "bucket_bytes": self.bucket_bytes, "exclude": list(self.exclude)}

    def create_state(self):
        self.counts = [min(self.k, spec.size) for spec in self.specs]
        self.unsent = [tf.Variable(tf.zeros([spec.size]), trainable=False) for spec in self.specs]

    def encode(self, gradients):
        values, places = [], []
        for gradient, unsent, count in zip(gradients, self.unsent, self.counts, strict=True):
            corrected = unsent + tf.reshape(tf.cast(gradient, tf.float32), [-1])
            _, largest = tf.math.top_k(tf.abs(corrected), count)
            values.append(tf.gather(corrected, largest))
            places.append(largest)
            sent = tf.scatter_nd(largest[:, tf.newaxis], values[-1], unsent.shape)
            unsent.assign(corrected - sent)
        return [tf.concat(values, axis=0), tf.concat(places, axis=0)]

    def deliver(self, message, like, scale):
        values = yield AllGather(message[0][tf.newaxis], f"{self.scope}/values")
        places = yield AllGather(message[1][tf.newaxis], f"{self.scope}/places")
        sums = [tf.zeros([spec.size]) for spec in self.specs]
        for rank in range(self.world_size):  # in this order on all workers: the same bits
            parts = zip(*(tf.split(m[rank], self.counts) for m in (places, values)), strict=True)
            sums = [
                tf.tensor_scatter_nd_add(total, indices[:, tf.newaxis], updates)
                for total, (indices, updates) in zip(sums, parts, strict=True)
            ]
        return [
            tf.cast(tf.reshape(scale * total, tf.shape(g)), g.dtype)
            for total, g in zip(sums, like, strict=True)
        ]

    def bytes_sent(self):
        return (self.world_size - 1) * 8 * sum(self.counts)

    def residuals(self):
        return [(spec.name, v) for spec, v in zip(self.specs, self.unsent, strict=True)]
