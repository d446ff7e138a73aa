"""Velocities: the moving averages of an optimizer, of one worker's own gradients."""

from collections.abc import Sequence

import tensorflow as tf

from tf_onebit import ops


class Velocities:
    """Velocities of the gradients of a bucket, which a worker's optimizer keeps.

    A velocity goes on to move a weight for some steps. If the value has been sent meanwhile, these
    steps come from gradients of weights that are long outdated. So an exchange that lets values
    wait clears velocities where it sends: momentum factor masking (Lin et al. 2018, section 3.2).

    Args:
        by_device: list of lists of float32 variables, one for each gradient of the bucket. The
            devices of a worker have equal velocities, and one list each.
        ranges: list of (first value, number of values) of the gradients that this worker
            exchanges. Default: all of their values.
    """

    def __init__(
        self,
        by_device: Sequence[Sequence[tf.Variable]],
        ranges: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        self._by_device = by_device
        self._ranges = ranges

    def clear_where_sent(self, message: tf.Tensor, part_size: int) -> None:
        """Sets velocities to zero where a message of this worker has values.

        Args:
            message: words `[rounds, parts, words]`, as `Threshold.message` makes them.
            part_size: see `ops.threshold_encode`.
        """
        for variables in self._by_device:
            ops.threshold_clear(variables, message, part_size, self._ranges)
