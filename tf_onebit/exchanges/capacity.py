"""Capacity: how many values a message has room for."""

import math

import numpy as np
import tensorflow as tf

# Room for so many times the most that was needed.
_HEADROOM = 1.25
# Number of exchanges after which a message may become shorter, and by how many steps at least.
_WINDOW = 32
_LEAST_SHRINKAGE = 2


def _ladder(most):
    """The capacities that are used: four per factor of two, because every one costs a collective
    of its own, and as many as there are variants of a request."""
    steps = range(math.ceil(4 * math.log2(max(most, 1))) + 1)
    return [min(most, math.ceil(2 ** (step / 4))) for step in steps]


class Capacity(tf.Module):
    """Room in a message of varying content, which changes rarely.

    It becomes larger when more values were to be sent than it has room for, and smaller when 32
    exchanges needed much less. All workers know what all needed, and so do the same.

    Args:
        most: number of values that there are at all.
        expected: number of values that are expected to be sent.
    """

    def __init__(self, most, expected):
        super().__init__()
        self._ladder = tf.constant(_ladder(most), tf.int64)
        step = int(self._step_for(expected))
        self.step = tf.Variable(step, dtype=tf.int32, trainable=False)
        self._peak = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._exchanges = tf.Variable(0, dtype=tf.int32, trainable=False)

    def _step_for(self, need):
        """The first step with headroom for as many values."""
        wanted = tf.cast(tf.math.ceil(_HEADROOM * tf.cast(need, tf.float64)), tf.int64)
        step = tf.searchsorted(self._ladder, wanted[tf.newaxis])[0]
        return tf.minimum(step, tf.size(self._ladder) - 1)

    def at(self, step):
        """Number of values that a message has room for in a step of the ladder."""
        return tf.gather(self._ladder, step)

    def follow(self, need):
        """Takes the most values that any worker was to send into account: int64 scalar."""
        peak = tf.maximum(self._peak, need)
        window_ends = self._exchanges + 1 >= _WINDOW
        step, fitting = tf.convert_to_tensor(self.step), self._step_for(peak)
        shrinks = window_ends & (fitting <= step - _LEAST_SHRINKAGE)
        grows = need > self.at(step)
        self.step.assign(tf.where(grows | shrinks, fitting, step))
        self._peak.assign(tf.where(window_ends, tf.zeros_like(peak), peak))
        self._exchanges.assign(tf.where(window_ends, 0, self._exchanges + 1))

    def state(self):
        """What it goes on from: NumPy array."""
        return np.array([v.numpy() for v in (self.step, self._peak, self._exchanges)], np.int64)

    def load(self, state):
        """Goes on from an earlier `state`."""
        for variable, value in zip((self.step, self._peak, self._exchanges), state, strict=True):
            variable.assign(value)
