"""Tau: a threshold that is given, or found for a density."""

import math
import statistics

import numpy as np
import tensorflow as tf

# Many values lie close below tau. To lower it by a part of itself sends up to the same part of all
# values at once; so it must not change much faster than they come.
_CHANGE_PER_DENSITY = 4.0
_MOST_CHANGE = 0.1
# From so many times the target on, tau is not close to what it should be, but of another size:
# then to wait for it would be to send nearly everything for many steps.
_FAR_TOO_DENSE = 10.0
# Squares of larger values overflow.
_LARGEST = 1e19
# Weight of the last exchange in the average density.
_LAST_WEIGHT = 0.2


class Tau(tf.Module):
    """The threshold of an exchange, as a variable.

    With a target it is unknown before the first exchange, in which nothing is sent. It begins as
    what so many of normally distributed gradients exceed,

        tau = Phi^-1(1 - target / 2) * root mean square of the gradients

    and then rises, as the residuals do, and follows the density:

        average <- average + 0.2 * (density - average)
        tau     <- tau * (1 + 4 * (average - target)), changing by a tenth at most

    Where gradients have grown all at once (after a pause, or a first step that was no example of
    those to come), the average exceeds ten times the target. Then tau is at least what it would
    begin as, with the residuals in place of the gradients.

    Only sums, products and roots, which have the same bits on every processor.

    Args:
        tau: float, in units of `unit`, or None.
        target_density: float, or None: the part of all values that is to exceed the threshold.
        unit: see `Exchange.build`.
    """

    def __init__(self, tau, target_density, unit=1.0):
        super().__init__()
        self._target = target_density
        self._unit = unit
        self.value = tf.Variable(unit * (tau or 0.0), dtype=tf.float32, trainable=False)
        self._average = tf.Variable(target_density or 0.0, dtype=tf.float32, trainable=False)

    def threshold(self):
        """What values must exceed; infinite while it is unknown."""
        return tf.where(self.value > 0, self.value, math.inf)

    def step(self):
        """What is sent in place of a value that exceeds it."""
        return tf.where(self.value > 0, self.value, 1.0)

    def follow(self, density, mean_square):
        """Takes the outcome of an exchange into account.

        Args:
            density: float32 scalar, the part of all values that exceeded the threshold.
            mean_square: float32 scalar, of what stayed behind: at first, of the gradients.
        """
        if self._target is None:
            return
        known = self.value > 0
        average = self._average + _LAST_WEIGHT * (density - self._average)
        self._average.assign(tf.where(known, average, self._average))
        change = _CHANGE_PER_DENSITY * (average - self._target)
        tau = self.value * (1.0 + tf.clip_by_value(change, -_MOST_CHANGE, _MOST_CHANGE))
        quantile = -statistics.NormalDist().inv_cdf(self._target / 2)
        first = tf.minimum(quantile * tf.sqrt(mean_square), _LARGEST)
        tau = tf.where(average > _FAR_TOO_DENSE * self._target, tf.maximum(tau, first), tau)
        self.value.assign(tf.where(known, tau, first))

    def in_units(self):
        """The threshold in units of the gradient of a worker's mean loss: float."""
        return float(self.value) / self._unit

    def state(self):
        """What it goes on from: NumPy array."""
        return np.array([self.value.numpy(), self._average.numpy(), self._unit])

    def load(self, state):
        """Goes on from an earlier `state`, maybe of gradients in another unit."""
        if self._target is not None:
            value, average, unit = state
            self.value.assign(self._unit / unit * value)
            self._average.assign(average)
