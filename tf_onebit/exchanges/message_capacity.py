"""Capacity: the number of values that a message has room for."""

import math

import numpy as np
import numpy.typing as npt
import tensorflow as tf

# Room in a message, relative to the average need. Values that do not fit wait, and usually fit
# into one of the next messages.
_HEADROOM = 1.1
# Number of exchanges in an average. The capacity may change after each such window.
_WINDOW = 32
# The capacity changes at once if the need exceeds it by this factor.
_TOO_MUCH = 2


def _ladder(most: int) -> list[int]:
    """Returns the capacities that are used, four per factor of two.

    Each capacity needs a collective of its own, and a request has a limited number of variants.
    """
    steps = range(math.ceil(4 * math.log2(max(most, 1))) + 1)
    return [min(most, math.ceil(2 ** (step / 4))) for step in steps]


class Capacity(tf.Module):
    """Room in a message of varying content. It changes rarely.

    It follows the average need every 32 exchanges. It grows at once when more than twice as many
    values are to be sent as it has room for. All workers know the needs of all, and so make the
    same change.

    Args:
        most: total number of values.
        expected: number of values that are expected to be sent.
        changes: whether it may change. Otherwise it is the expected number.
    """

    def __init__(self, most: int, expected: float, changes: bool = True) -> None:
        super().__init__()
        ladder = _ladder(most) if changes else [min(most, math.ceil(expected))]
        self._ladder = tf.constant(ladder, tf.int64)
        self.step = tf.Variable(self._step_for(expected), dtype=tf.int32, trainable=False)
        self._needed = tf.Variable(0, dtype=tf.int64, trainable=False)  # sum over this window
        self._exchanges = tf.Variable(0, dtype=tf.int32, trainable=False)

    def _step_for(self, need: tf.Tensor | float) -> tf.Tensor:
        """Returns the first step of the ladder with headroom for `need` values."""
        wanted = tf.cast(tf.math.ceil(_HEADROOM * tf.cast(need, tf.float64)), tf.int64)
        step = tf.searchsorted(self._ladder, wanted[tf.newaxis])[0]
        return tf.minimum(step, tf.size(self._ladder) - 1)

    def at(self, step: tf.Tensor) -> tf.Tensor:
        """Returns the capacity at a step of the ladder, in values."""
        return tf.gather(self._ladder, step)

    def follow(self, need: tf.Tensor) -> None:
        """Updates the capacity after an exchange.

        Args:
            need: int64 scalar, the largest number of values that any worker had to send.
        """
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

    def state(self) -> npt.NDArray[np.int64]:
        """Returns the state to continue from: NumPy array."""
        return np.array([v.numpy() for v in (self.step, self._needed, self._exchanges)], np.int64)

    def load(self, state: npt.NDArray[np.int64]) -> None:
        """Restores an earlier `state`."""
        for variable, value in zip((self.step, self._needed, self._exchanges), state, strict=True):
            variable.assign(value)
