"""WarmUpProgress: the progress of a bucket's warm-up."""

import numpy as np
import tensorflow as tf

from tf_onebit.exchanges.schedule import WarmUp
from tf_onebit.exchanges.state import State

# Name in a state: whether an exchange after the warm-up has been counted.
IS_OVER = "is_over"


class WarmUpProgress(tf.Module):
    """Counter of a bucket's exchanges until its `WarmUp` is over.

    Args:
        warm_up: `WarmUp`.
    """

    def __init__(self, warm_up: WarmUp) -> None:
        super().__init__()
        self.warm_up = warm_up
        self._progress, self._increment = (
            tf.Variable(value, dtype=tf.int64, trainable=False)
            for value in (0, warm_up.per_exchange)
        )
        self._was_warm = tf.Variable(warm_up.length > 0, trainable=False)

    def is_warm(self) -> tf.Tensor:
        """Tells whether the next exchange is within the warm-up: boolean tensor."""
        return self._progress < self.warm_up.length

    def was_warm(self) -> bool:
        """Tells whether the last exchange was within the warm-up: boolean."""
        return bool(self._was_warm)

    def count(self, warm: tf.Tensor | bool) -> None:
        """Counts an exchange, and notes whether it was within the warm-up."""
        self._was_warm.assign(warm)
        self._progress.assign_add(self._increment)

    def set_global_batch_size(self, samples: int) -> None:
        """Sets the number of samples per exchange."""
        if self.warm_up.unit == "samples":
            self._increment.assign(samples)

    def state(self) -> State:
        """Returns the state to continue from: dictionary of NumPy arrays."""
        return {
            "progress": self._progress.numpy(),
            "increment": self._increment.numpy(),
            IS_OVER: np.logical_not(self._was_warm.numpy()),
        }

    def load_state(self, state: State) -> None:
        """Restores an earlier `state`."""
        self._progress.assign(state["progress"])
        self._increment.assign(state["increment"])
        self._was_warm.assign(np.logical_not(state[IS_OVER]))

    def advice(self) -> str | None:
        """Returns advice for the user, if training ends within the warm-up: a text, or None."""
        progress, length, unit = int(self._progress), self.warm_up.length, self.warm_up.unit
        if progress == 0 or progress >= length:
            return None
        return (
            f"Training has ended within its warm start, after {progress} of {length} {unit}. All "
            "gradients were sent uncompressed. Unless training continues, use WarmStart(..., "
            f"{unit}=...) with about a tenth of the job's {unit}. Received: {unit}={length}. Use "
            f"for example {unit}={max(1, progress // 10)}."
        )
