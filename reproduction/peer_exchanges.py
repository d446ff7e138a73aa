"""Methods of others to compress gradients, as exchanges: what they compute, not how they send it.

Messages are sums of dense tensors. `payload_bytes` says what the method itself would send.

* PowerSGD: Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for
  Distributed Optimization" (2019), algorithms 1 and 2.
* Deep Gradient Compression: Lin, Han, Mao, Wang and Dally (2018), sections 3.1 to 3.3.
"""

import numpy as np
import tensorflow as tf

import tf_onebit
from tf_onebit.collectives import AllReduce


def zeros(specs):
    """Returns a variable for each gradient: list."""
    return [tf.Variable(tf.zeros(spec.shape), trainable=False) for spec in specs]


class Dense(tf_onebit.Exchange):
    """Base of exchanges whose only message is a list of float32 tensors, which are averaged.

    Subclasses define `encode`, which returns that list, and `decoded`.
    """

    moments = "after"

    def get_config(self):
        return {"bucket_bytes": self.bucket_bytes}

    def deliver(self, message, like, scale):
        means = yield AllReduce(message, f"{self.scope}/mean", 1.0 / self.world_size)
        # The factor that makes a mean of sums: `scale * world_size` of the given unit.
        factor = scale * self.world_size * self.unit
        results = yield from self.decoded(means)
        return [
            tf.cast(factor * tf.reshape(result, tf.shape(g)), g.dtype)
            for result, g in zip(results, like, strict=True)
        ]

    def decoded(self, means):
        """Generator: returns the exchanged gradients, of the averaged messages: list of tensors."""
        yield from ()
        return means

    def given(self, gradients):
        """Returns gradients of each worker's mean loss: list of float32 tensors."""
        return [tf.cast(gradient, tf.float32) / self.unit for gradient in gradients]

    def residuals(self):
        return []

    def bytes_sent(self):
        return round(self.payload_bytes())


class PowerSGD(Dense):
    """Low rank: the matrix M = G + E is sent as P Q', with P = orthogonal(mean(M Q)).

    Args:
        rank: number of columns of P and Q. Tensors with one axis are not compressed.
    """

    def __init__(self, rank, bucket_bytes=32 * 2**20):
        super().__init__(bucket_bytes)
        self.columns = rank

    def get_config(self):
        return {"rank": self.columns, **super().get_config()}

    def create_state(self):
        self.errors = zeros(self.specs)
        rng = np.random.default_rng(1)  # the same on all workers
        self.rights = [
            tf.Variable(rng.standard_normal((spec.shape[-1], self.columns), np.float32))
            for spec in self.specs
        ]

    def encode(self, gradients):
        message, self.matrices = [], []
        for g, error, right in zip(self.given(gradients), self.errors, self.rights, strict=True):
            corrected = g if len(g.shape) < 2 else tf.reshape(g + error, [-1, g.shape[-1]])
            self.matrices.append(corrected)
            message.append(corrected if len(g.shape) < 2 else corrected @ right)
        return message

    def decoded(self, means):
        is_compressed = [len(spec.shape) > 1 for spec in self.specs]
        lefts = [
            tf.linalg.qr(mean)[0] if yes else None
            for mean, yes in zip(means, is_compressed, strict=True)
        ]
        products = [
            tf.transpose(matrix) @ left
            for matrix, left in zip(self.matrices, lefts, strict=True)
            if left is not None
        ]
        if products:  # none in a bucket without matrices
            products = yield AllReduce(products, f"{self.scope}/q", 1.0 / self.world_size)
        products, results = iter(products), []
        for i, left in enumerate(lefts):
            if left is None:
                results.append(means[i])
                continue
            right = next(products)
            self.rights[i].assign(right)
            results.append(left @ tf.transpose(right))
            error = self.matrices[i] - results[-1]
            self.errors[i].assign(tf.reshape(error, self.errors[i].shape))
        return results

    def payload_bytes(self):
        values = 0
        for spec in self.specs:
            columns = spec.shape[-1] if spec.shape else 1
            low = self.columns * (spec.size // columns + columns)
            values += spec.size if len(spec.shape) < 2 else low
        return 2 * (self.world_size - 1) / self.world_size * 4 * values


class DeepGradientCompression(Dense):
    """Top-k of velocities that add up: u = m u + g, v = v + u. What is sent is cleared in both.

    Behind it stands SGD without momentum. During a warm-up the density falls from 1/4 to 1/1024,
    each time by the same factor.

    Args:
        warm_up_steps: number of steps.
        momentum: m.
    """

    def __init__(self, warm_up_steps, momentum=0.9, bucket_bytes=32 * 2**20):
        super().__init__(bucket_bytes)
        self.warm_up_steps, self.momentum = warm_up_steps, momentum

    def get_config(self):
        return {
            "warm_up_steps": self.warm_up_steps,
            "momentum": self.momentum,
            **super().get_config(),
        }

    def create_state(self):
        self.velocities, self.sums = zeros(self.specs), zeros(self.specs)
        self.steps = tf.Variable(0.0, trainable=False)

    def density(self):
        """Returns the part of the values that is sent in this step."""
        return 0.25 ** (1 + 4 * tf.minimum(self.steps / self.warm_up_steps, 1.0))

    def encode(self, gradients):
        density, message = self.density(), []
        for g, u, v in zip(self.given(gradients), self.velocities, self.sums, strict=True):
            velocity = self.momentum * u + g
            total = v + velocity
            size = tf.cast(tf.size(total), tf.float32)
            count = tf.maximum(1, tf.cast(tf.round(density * size), tf.int32))
            least = tf.math.top_k(tf.reshape(tf.abs(total), [-1]), count)[0][-1]
            kept = tf.cast(tf.abs(total) < least, tf.float32)
            u.assign(velocity * kept)
            v.assign(total * kept)
            message.append(total * (1 - kept))
        self.steps.assign_add(1.0)
        return message

    def payload_bytes(self):
        values = sum(max(1, round(spec.size / 1024)) for spec in self.specs)
        return 8 * (self.world_size - 1) * values
