"""Transform: a change of a shard's aggregate, on its owner, between the two quantizations."""

import tensorflow as tf

from tf_onebit.configurable import Configurable


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
    sharded = None
    pending = ()

    def build(self, layout, rank, scope):
        """Creates the variables for shard `rank` of `layout`. Request names begin with `scope`."""

    def transform(self, aggregate, plain):
        """Generator: yields collectives, and returns the transformed values.

        Args:
            aggregate: float32 `[layout.shard_sizes[rank]]`, the sum over the workers.
            plain: float32 `[layout.plain_size]`, the sum over the workers.

        Returns:
            The transformed `aggregate` and `plain`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define transform.")

    def set_global_batch_size(self, samples):
        """See `Exchange.set_global_batch_size`."""

    def bytes_sent(self):
        """Returns the bytes that this worker sends for the transform in each step."""
        return 0
