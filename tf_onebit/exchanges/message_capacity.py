"""Capacity: how many values a message has room for."""

import math

import numpy as np
import tensorflow as tf

# A message has room for so many times what is needed on average: what does not fit waits, and most
# of the time soon comes a message with room to spare.
_HEADROOM = 1.1
# Number of exchanges that the average is taken over, and after which it may change.
_WINDOW = 32
# It changes at once where so many times as much is needed.
_TOO_MUCH = 2


def _ladder(most):
    """The capacities that are used: four per factor of two, because every one costs a collective
    of its own, and as many as there are variants of a request."""
    steps = range(math.ceil(4 * math.log2(max(most, 1))) + 1)
    return [min(most, math.ceil(2 ** (step / 4))) for step in steps]


class Capacity(tf.Module):
    """Room in a message of varying content, which changes rarely.

    It follows what is needed on average, every 32 exchanges, and grows at once when more than twice
    as much is to be sent as it has room for. All workers know what all needed, and so do the same.

    Args:
        most: number of values that there are at all.
        expected: number of values that are expected to be sent.
    """

    def __init__(self, most, expected):
        super().__init__()
        self._ladder = tf.constant(_ladder(most), tf.int64)
        self.step = tf.Variable(self._step_for(expected), dtype=tf.int32, trainable=False)
        self._needed = tf.Variable(0, dtype=tf.int64, trainable=False)  # in this window, in all
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
        step = tf.convert_to_tensor(self.step)
        needed, exchanges = self._needed + need, self._exchanges + 1
        too_much = need > _TOO_MUCH * self.at(step)
        window_ends = exchanges >= _WINDOW
        mean_need = tf.cast(needed, tf.float64) / _WINDOW
        changed = tf.where(too_much, self._step_for(need), self._step_for(mean_need))
        changes = too_much | window_ends
        self.step.assign(tf.where(changes, changed, step))
        self._needed.assign(tf.where(changes, tf.zeros_like(needed), needed))
        self._exchanges.assign(tf.where(changes, tf.zeros_like(exchanges), exchanges))

    def state(self):
        """What it goes on from: NumPy array."""
        return np.array([v.numpy() for v in (self.step, self._needed, self._exchanges)], np.int64)

    def load(self, state):
        """Goes on from an earlier `state`."""
        for variable, value in zip((self.step, self._needed, self._exchanges), state, strict=True):
            variable.assign(value)
