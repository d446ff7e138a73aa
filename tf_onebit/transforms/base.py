"""Transform: a change of a shard's aggregate, on its owner, between the two quantizations."""

from collections.abc import Sequence

import tensorflow as tf

from tf_onebit._configurable import Configurable
from tf_onebit._layout import Layout
from tf_onebit.collectives.requests import Exchanging


class Transform(Configurable, tf.Module):
    """Step between aggregation and redistribution (Seide et al. 2014, section 3.1).

    It runs on 1 / world_size of the model. Every worker transforms all values that travel in full
    precision. Subclasses define `transform` and `get_config`, and create their variables in
    `build`.

    Example:
        A constant factor:

        >>> class Scale(Transform):
        ...     def __init__(self, factor):
        ...         super().__init__()
        ...         self.factor = factor
        ...     def get_config(self):
        ...         return {"factor": self.factor}
        ...     def transform(self, aggregate, plain):
        ...         return self.factor * aggregate, self.factor * plain
        ...         yield  # a generator, though it asks for no collective
    """

    # Two lists of variables. `sharded`: variables with one value for each value of the shard; all
    # other variables are the same on all workers (None: unknown). `pending`: variables with
    # gradients that have yet to take effect; they are scaled like residuals.
    sharded: Sequence[tf.Variable] | None = None
    pending: Sequence[tf.Variable] = ()

    def build(self, layout: Layout, rank: int, scope: str) -> None:
        """Creates the variables for shard `rank` of `layout`. Request names begin with `scope`."""

    def transform(
        self, aggregate: tf.Tensor, plain: tf.Tensor
    ) -> Exchanging[tuple[tf.Tensor, tf.Tensor]]:
        """Generator: yields collectives, and returns the transformed values.

        Args:
            aggregate: float32 `[layout.shard_sizes[rank]]`, the sum over the workers.
            plain: float32 `[layout.plain_size]`, the sum over the workers.

        Returns:
            The transformed `aggregate` and `plain`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define transform.")

    def set_global_batch_size(self, samples: int) -> None:
        """See `Exchange.set_global_batch_size`."""

    def bytes_sent(self) -> int:
        """Returns the bytes that this worker sends for the transform in each step."""
        return 0
