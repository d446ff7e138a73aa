"""Tau: a threshold that is given, or adapted to a target density."""

import math
import statistics
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_onebit.ops import threshold as words

# Many values lie just below tau. If tau falls by some fraction, up to that fraction of all values
# is sent at once. So tau must not change much faster than values grow.
_CHANGE_PER_DENSITY = 4.0
_MOST_CHANGE = 0.1
# Beyond this multiple of the target density, tau has the wrong order of magnitude. Slow adaptation
# would then send nearly all values for many steps.
_FAR_TOO_DENSE = 10.0
# The squares of larger values overflow.
_LARGEST = 1e19
# Weight of the last exchange in the average density.
_LAST_WEIGHT = 0.2


class Tau(tf.Module):
    """Threshold of an exchange, kept in a variable.

    With a target density it is unknown before the first exchange, which sends nothing. It begins
    as the value that the target fraction of normally distributed gradients would exceed:

        tau = Phi^-1(1 - target / 2) * root mean square of the gradients

    It then rises with the residuals, and follows the density:

        average <- average + 0.2 * (density - average)
        tau     <- tau * (1 + 4 * (average - target)), changing by a tenth at most

    Gradients may suddenly grow: after a pause, or after a first step that was not typical. Then
    the average exceeds ten times the target. In this case the initial formula, with the residuals
    in place of the gradients, is a lower bound of tau.

    The rule uses only sums, products and roots, which have the same bits on every processor.

    Args:
        tau: float, in units of `unit`, or None.
        target_density: float: the fraction of all values that should exceed the threshold; or
            None.
        unit: see `Exchange.build`.
    """

    rounds = 1
    name_of_state = "tau"
    # The word of a header with the number of values that count as dense.
    counted = words.EXCEEDING

    def __init__(self, tau: float | None, target_density: float | None, unit: float = 1.0) -> None:
        super().__init__()
        self._target = target_density
        self._unit = unit
        self.value = tf.Variable(unit * (tau or 0.0), dtype=tf.float32, trainable=False)
        self._average = tf.Variable(target_density or 0.0, dtype=tf.float32, trainable=False)

    def choose(
        self, gradients: Sequence[tf.Tensor], residual: tf.Variable, decay: float
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the threshold that values must exceed, and the magnitude that stands for them.

        Both are tau. While it is unknown, the threshold is infinite.

        Args:
            gradients, residual, decay: of the message, not used.
        """
        known = self.value > 0
        return tf.where(known, self.value, math.inf), tf.where(known, self.value, 1.0)

    def follow(self, density: tf.Tensor, mean_square: tf.Tensor) -> None:
        """Updates the threshold after an exchange.

        Args:
            density: float32 scalar, the fraction of all values that exceeded the threshold.
            mean_square: float32 scalar, the mean square of the residuals. After the first
                exchange these are the gradients.
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

    def in_units(self) -> float:
        """Returns the threshold in units of a worker's mean gradient, or of its updates: float."""
        return float(self.value) / self._unit

    def state(self) -> npt.NDArray[np.float64]:
        """Returns the state to continue from: NumPy array."""
        return np.array([self.value.numpy(), self._average.numpy(), self._unit])

    def load(self, state: npt.NDArray[np.float64]) -> None:
        """Restores an earlier `state`, also one of gradients in another unit."""
        if self._target is not None:
            value, average, unit = state
            self.value.assign(self._unit / unit * value)
            self._average.assign(average)
