"""LargestValues: thresholds of one message, which a given part of its values exceeds."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_onebit.ops import threshold as words

# Number of values in a sample that are to be above its threshold. So the number of values that are
# sent differs by 3 % from message to message.
_ABOVE = 1000
# Of no more values than that, all are in the sample.
_MOST_IN_SAMPLE = 2**17
# Room for more values than expected, in standard deviations of their number. Others wait.
_DEVIATIONS = 2
_JUST_BELOW = 1 - 2.0**-23
# Below it, products are not exact.
_LEAST = float(np.finfo(np.float32).tiny)
# Steps of this part of a length spread points most evenly over it, however many they are.
_GOLDEN = (math.sqrt(5) - 1) / 2


class LargestValues(tf.Module):
    """Thresholds for the largest values of a message, and their mean magnitudes.

    A message has two rounds. In each, the largest values of what is left are sent as their mean
    magnitude. Threshold and magnitude are found from a sample of n values, or from all if these
    are few::

        threshold = just below the k-th largest magnitude of the sample,    k = density * n / 2
        magnitude = mean of the k largest

    At least one value is sent in a round. The sample is spread evenly over each gradient, and is
    another one in the next round. If it has only zeros, nothing is sent.

    Args:
        target_density: float: the fraction of all values that a message should have.
        sizes: list of the gradients' numbers of values.
        unit: see `Exchange.build`.

    Attributes:
        room: number of values that a round needs room for.
    """

    rounds = 2
    name_of_state = "sample"
    # The word of a header with the number of values that count as dense.
    counted = words.COUNT

    def __init__(self, target_density: float, sizes: Sequence[int], unit: float) -> None:
        super().__init__()
        self._sizes, self._unit = tuple(sizes), unit
        self._spacing = 1
        if sum(sizes) > _MOST_IN_SAMPLE:
            in_sample = min(math.ceil(_ABOVE * self.rounds / target_density), _MOST_IN_SAMPLE)
            self._spacing = sum(sizes) // in_sample
        number = sum(map(self._number_of, sizes))
        self._count = min(max(1, round(target_density * number / self.rounds)), number)
        margin = 0.0 if self._spacing == 1 else _DEVIATIONS * math.sqrt(self._count)
        self.room = (self._count + margin) / max(1, number) * sum(sizes)
        self._threshold = tf.Variable(0.0, trainable=False)  # the last
        self._samples = tf.Variable(0, dtype=tf.int64, trainable=False)  # number of those taken

    def choose(
        self, gradients: Sequence[tf.Tensor], residual: tf.Variable, decay: float
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the threshold that values must exceed, and the magnitude that stands for them.

        Args:
            gradients: list of tensors, of zeros in the second round.
            residual: float32 variable with as many values.
            decay: factor on the residual.
        """
        sample = tf.abs(self._sample(gradients, residual, decay))
        # A value that is not finite ends the step in an error, which names its gradient.
        sample = tf.where(tf.math.is_finite(sample), sample, 0.0)
        largest = tf.math.top_k(sample, self._count, sorted=False).values
        threshold = tf.maximum(_JUST_BELOW * tf.reduce_min(largest), _LEAST)
        # If fewer values differ from zero, only these are sent.
        number = tf.math.count_nonzero(largest > threshold, dtype=tf.float32)
        mean = tf.reduce_sum(largest / tf.maximum(number, 1.0))
        mean = tf.minimum(mean, tf.reduce_max(largest))  # the sum may have been rounded up
        some = number > 0
        self._threshold.assign(tf.where(some, threshold, 0.0))
        return tf.where(some, threshold, math.inf), tf.where(some, mean, 0.0)

    def _number_of(self, size: int) -> int:
        """Returns the number of values in a sample of a gradient."""
        return -(-size // self._spacing)

    def _sample(
        self, gradients: Sequence[tf.Tensor], residual: tf.Variable, decay: float
    ) -> tf.Tensor:
        values, begin = [], 0
        for gradient, size in zip(gradients, self._sizes, strict=True):
            places = self._places(size)
            of_gradient = tf.gather(tf.reshape(gradient, [-1]), places)
            unsent = tf.gather(residual, begin + places)
            values.append(tf.cast(of_gradient, tf.float32) + decay * unsent)
            begin += size
        self._samples.assign_add(1)
        return tf.concat(values, 0)

    def _places(self, size: int) -> tf.Tensor:
        """Returns the indices of the next sample of a gradient: int64 `[n]`."""
        number = self._number_of(size)
        if self._spacing == 1:
            return tf.range(number, dtype=tf.int64)
        step = max(1, round(_GOLDEN * size))
        while math.gcd(step, size) > 1:  # else it would not come to all places
            step += 1
        first = self._samples % max(1, size) * number
        return (first + tf.range(number, dtype=tf.int64)) % size * step % size

    def follow(self, density: tf.Tensor, mean_square: tf.Tensor) -> None:
        """Does nothing, because each message has a threshold of its own."""

    def in_units(self) -> float:
        """Returns the last threshold in units of a worker's gradient, or of its updates: float."""
        return float(self._threshold) / self._unit

    def state(self) -> npt.NDArray[np.int64]:
        """Returns the state to continue from: NumPy array."""
        return np.asarray(self._samples.numpy())

    def load(self, state: npt.NDArray[np.int64]) -> None:
        """Restores an earlier `state`."""
        self._samples.assign(state)
