"""How far the warm-up of a bucket is."""

import tensorflow as tf


class WarmUpProgress(tf.Module):
    """Counts the exchanges of a bucket until its `WarmUp` is over.

    Args:
        warm_up: `WarmUp`.
    """

    def __init__(self, warm_up):
        super().__init__()
        self.warm_up = warm_up
        self._progress, self._increment = (
            tf.Variable(value, dtype=tf.int64, trainable=False)
            for value in (0, warm_up.per_exchange)
        )
        self._was_warm = tf.Variable(warm_up.length > 0, trainable=False)

    def is_warm(self):
        """Returns whether the next exchange is within it: boolean tensor."""
        return self._progress < self.warm_up.length

    def was_warm(self):
        """Returns whether the last exchange was within it: boolean."""
        return bool(self._was_warm)

    def count(self, gradients, warm):
        """Counts an exchange once its gradients are there: not where data have ended."""
        with tf.control_dependencies(tf.nest.flatten(gradients, expand_composites=True)):
            self._was_warm.assign(warm)
            self._progress.assign_add(self._increment)

    def set_global_batch_size(self, samples):
        """Takes the number of samples of an exchange from now on."""
        if self.warm_up.unit == "samples":
            self._increment.assign(samples)

    def state(self):
        """Returns what it goes on from: dictionary of NumPy arrays."""
        return {"progress": self._progress.numpy(), "increment": self._increment.numpy()}

    def load_state(self, state):
        """Goes on from an earlier `state`."""
        self._progress.assign(state["progress"])
        self._increment.assign(state["increment"])

    def advice(self):
        """Returns advice to the user if training ends within it: a text, or None."""
        progress, length, unit = int(self._progress), self.warm_up.length, self.warm_up.unit
        if progress == 0 or progress >= length:
            return None
        return (
            f"Training has ended within its warm start, after {progress} of {length} {unit}: "
            "all gradients have been sent uncompressed. Unless it goes on, use "
            f"WarmStart(..., {unit}=...) with about a tenth of the job's {unit}. Received: "
            f"{unit}={length}. Use for example {unit}={max(1, progress // 10)}."
        )
