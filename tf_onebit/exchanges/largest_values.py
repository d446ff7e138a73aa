"""LargestValues: thresholds of one message, which a given part of its values exceeds."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

# Number of values that a threshold is found from. If one in 1000 is to be sent, the number of those
# that are differs by a tenth from message to message.
_SAMPLE_SIZE = 2**17
# Room for more values than expected, in standard deviations of their number. Others wait.
_DEVIATIONS = 2
_JUST_BELOW = 1 - 2.0**-23
# Below it, products are not exact.
_LEAST = float(np.finfo(np.float32).tiny)


class LargestValues(tf.Module):
    """Thresholds for the largest values of a message, and their mean magnitudes.

    A message has two rounds. The second one sends of what the first has left. In each round both
    are found from a sample of n values, evenly spaced. Of few values it is all of them::

        threshold = just below the k-th largest magnitude of the sample,    k = density * n / 2
        magnitude = mean of the k largest

    Args:
        target_density: float: the fraction of all values that a message should have.
        sizes: list of the gradients' numbers of values.
        unit: see `Exchange.build`.

    Attributes:
        room: number of values that a round needs room for.
    """

    rounds = 2

    def __init__(self, target_density: float, sizes: Sequence[int], unit: float) -> None:
        super().__init__()
        self._sizes, self._unit = tuple(sizes), unit
        # Odd, so that it does not always meet the same places of rows of 2^n values.
        self._spacing = max(1, sum(sizes) // _SAMPLE_SIZE) | 1
        number = sum(-(-size // self._spacing) for size in sizes)
        self._count = min(max(1, round(target_density * number / self.rounds)), number)
        margin = 0.0 if self._spacing == 1 else _DEVIATIONS * math.sqrt(self._count)
        self.room = (self._count + margin) / max(1, number) * sum(sizes)
        self._threshold = tf.Variable(0.0, trainable=False)  # the last

    def choose(
        self, gradients: Sequence[tf.Tensor], residual: tf.Variable
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the threshold that values must exceed, and the magnitude that stands for them.

        Args:
            gradients: list of tensors, of zeros in the second round.
            residual: float32 variable with as many values.
        """
        sample = tf.abs(self._sample(gradients, residual))
        # A value that is not finite ends the step in an error, which names its gradient.
        sample = tf.where(tf.math.is_finite(sample), sample, 0.0)
        largest = tf.math.top_k(sample, self._count, sorted=False).values
        threshold = tf.maximum(_JUST_BELOW * tf.reduce_min(largest), _LEAST)
        self._threshold.assign(threshold)
        # If fewer values differ from zero, only these are sent.
        number = tf.maximum(1, tf.math.count_nonzero(largest > threshold, dtype=tf.int32))
        return threshold, tf.reduce_sum(largest / tf.cast(number, tf.float32))

    def _sample(self, gradients: Sequence[tf.Tensor], residual: tf.Variable) -> tf.Tensor:
        values, begin = [], 0
        for gradient, size in zip(gradients, self._sizes, strict=True):
            of_gradient = tf.reshape(gradient, [-1])[:: self._spacing]
            unsent = residual[begin : begin + size : self._spacing]
            values.append(tf.cast(of_gradient, tf.float32) + unsent)
            begin += size
        return tf.concat(values, 0)

    def follow(self, density: tf.Tensor, mean_square: tf.Tensor) -> None:
        """Does nothing, because each message has a threshold of its own."""

    def in_units(self) -> float:
        """Returns the last threshold in units of a worker's gradient, or of its updates: float."""
        return float(self._threshold) / self._unit

    def state(self) -> npt.NDArray[np.float64]:
        """Returns the state to continue from, which is none: NumPy array without values."""
        return np.zeros(0)

    def load(self, state: npt.NDArray[np.float64]) -> None:
        """Restores an earlier `state`."""
