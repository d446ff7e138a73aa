"""Exchanges that contain Adam, as reproductions compare them. Behind them stands plain SGD.

* 1-bit Adam: Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's
  Convergence Speed" (2021), algorithm 1.
* Squares of all workers, averaged at growing intervals: Lu et al., "Maximizing Communication
  Efficiency for Large-scale Training via 0/1 Adam" (2022), algorithm 1, with one local step.

Both need a `WarmStart`, and a value that had no gradient there does not move.
"""

import tensorflow as tf
from peer_exchanges import Dense, zeros

from tf_onebit import OneBit
from tf_onebit.collectives import AllReduce

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-7


class Moments:
    """Adam's moments of each value: m, v and the number of steps.

    Args:
        specs: list of the gradients' `GradientSpec`.
    """

    def __init__(self, specs):
        self.m, self.v = zeros(specs), zeros(specs)
        self.steps = tf.Variable(0.0, trainable=False)

    def add(self, gradients):
        """Counts a step, and averages gradients."""
        self.steps.assign_add(1.0)
        for g, m, v in zip(gradients, self.m, self.v, strict=True):
            m.assign(BETA_1 * m + (1 - BETA_1) * g)
            v.assign(BETA_2 * v + (1 - BETA_2) * tf.square(g))

    def directions(self, squares, *, corrected):
        """Returns m / (sqrt(v) + epsilon): list of tensors.

        Args:
            squares: list of v.
            corrected: whether to divide moments by what they lack after few steps.
        """
        first, second = 1.0, 1.0
        if corrected:
            first, second = 1 - BETA_1**self.steps, 1 - BETA_2**self.steps
        return [
            tf.where(v > 0, (m / first) / (tf.sqrt(v / second) + EPSILON), 0.0)
            for m, v in zip(self.m, squares, strict=True)
        ]


class WarmUp(Dense):
    """Adam in full precision, with the moments of the exchange that follows.

    Args:
        of: the exchange, with `moments`.
    """

    def __init__(self, of):
        super().__init__(of.bucket_bytes)
        self._of = [of]  # in a list, because its variables belong to it

    def encode(self, gradients):
        return self.given(gradients)

    def decoded(self, means):
        yield from ()
        (of,) = self._of
        of.moments_of_adam.add(means)
        return of.moments_of_adam.directions(of.moments_of_adam.v, corrected=True)

    def payload_bytes(self):
        values = sum(spec.size for spec in self.specs)
        return 2 * (self.world_size - 1) / self.world_size * 4 * values


class OneBitAdam(Dense):
    """The momentum of Adam in one bit per value, and its squares of the warm-up, which stay.

    m_k = b1 m + (1 - b1) g_k is quantized to sign(x) |x| / sqrt(size) by each worker, and their
    mean by the owner of each K-th, both with error feedback.
    """

    def create_state(self):
        self.moments_of_adam = Moments(self.specs)
        self.errors, self.errors_of_owners = zeros(self.specs), zeros(self.specs)

    def uncompressed(self):
        return WarmUp(self) if self.built else None

    def encode(self, gradients):
        message = []
        momenta = self.moments_of_adam.m
        for g, m, error in zip(self.given(gradients), momenta, self.errors, strict=True):
            corrected = BETA_1 * m + (1 - BETA_1) * g + error
            message.append(_signs(corrected, 1))
            error.assign(corrected - message[-1])
        return message

    def decoded(self, means):
        yield from ()
        moments = self.moments_of_adam
        for mean, m, error in zip(means, moments.m, self.errors_of_owners, strict=True):
            corrected = mean + error
            m.assign(_signs(corrected, self.world_size))
            error.assign(corrected - m)
        return moments.directions(moments.v, corrected=False)

    def payload_bytes(self):
        bits = 2 * (self.world_size - 1) / self.world_size
        return sum(bits * (spec.size / 8 + 4) for spec in self.specs)


class SharedSquares(OneBit):
    """1-bit SGD of Adam's directions: each worker's own momentum, squares that all workers share.

    Each worker also averages squares of its own. Now and then workers average these in full
    precision, and all of them go on with the mean. There is one step from one time to the next at
    first. After each 16 times there are twice as many.
    """

    TIMES_PER_INTERVAL = 16

    def __init__(self, bucket_bytes=32 * 2**20):
        super().__init__(bucket_bytes=bucket_bytes, moments="after", aggregate_bits=2)

    def get_config(self):
        return {"bucket_bytes": self.bucket_bytes}

    def create_state(self):
        super().create_state()
        self.moments_of_adam, self.squares = Moments(self.specs), zeros(self.specs)
        self.compressed_steps = tf.Variable(0, trainable=False)
        self.next_time, self.times = (tf.Variable(1, trainable=False) for _ in range(2))

    def uncompressed(self):
        return WarmUp(self) if self.built else None

    def encode(self, gradients):
        moments = self.moments_of_adam
        is_first = tf.equal(self.compressed_steps.assign_add(1), 1)
        for squares, v in zip(self.squares, moments.v, strict=True):
            squares.assign(tf.where(is_first, v, squares))
        moments.add([tf.cast(gradient, tf.float32) / self.unit for gradient in gradients])
        directions = moments.directions(self.squares, corrected=True)
        return super().encode([self.unit * direction for direction in directions])

    def deliver(self, message, like, scale):
        own = self.moments_of_adam.v
        means = yield AllReduce(
            [tf.identity(v) for v in own], f"{self.scope}/squares", 1.0 / self.world_size
        )
        is_due = tf.equal(self.compressed_steps, self.next_time)
        steps = tf.bitwise.left_shift(1, self.times // self.TIMES_PER_INTERVAL)
        self.times.assign_add(tf.cast(is_due, tf.int32))
        self.next_time.assign_add(tf.where(is_due, steps, 0))
        for mean, squares, v in zip(means, self.squares, own, strict=True):
            squares.assign(tf.where(is_due, mean, squares))
            v.assign(tf.where(is_due, mean, v))
        return (yield from super().deliver(message, like, scale))

    def bytes_sent(self):
        """Returns the mean over the steps so far, because the squares are sent in some of them."""
        values = sum(spec.size for spec in self.specs)
        squares = 2 * (self.world_size - 1) / self.world_size * 4 * values
        part = (int(self.times) - 1) / max(1, int(self.compressed_steps))
        return super().bytes_sent() + round(squares * part)


def _signs(tensor, parts):
    """Returns sign(x) |x| / sqrt(size) of each of some equal parts of a tensor, in its shape."""
    flat = tf.reshape(tensor, [-1])
    size = tensor.shape.num_elements()
    split = [size * (part + 1) // parts - size * part // parts for part in range(parts)]
    signs = [
        tf.where(part < 0, -1.0, 1.0) * tf.norm(part) / max(1, number) ** 0.5
        for part, number in zip(tf.split(flat, split), split, strict=True)
    ]
    return tf.reshape(tf.concat(signs, axis=0), tensor.shape)
