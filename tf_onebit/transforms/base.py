"""What is done to the aggregate of a shard, on its owner, between the two quantizations."""

import tensorflow as tf

from tf_onebit.configurable import Configurable


class Transform(Configurable, tf.Module):
    """A step between aggregation and redistribution (Seide et al. 2014, section 3.1).

    It runs on 1 / world_size of the model. Values that travel in full precision are transformed
    on every worker alike. Subclasses define `transform` and `get_config`, and create their
    variables in `build`.

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

    # Lists of variables: those of which each value belongs to one of the shard's, while all others
    # are the same on all workers (None: nothing is known); and those of gradients that are yet to
    # have an effect, which grow as what has not been sent where gradients do.
    sharded = None
    pending = ()

    def build(self, layout, rank, scope):
        """Creates the variables of shard `rank` of `layout`; `scope` prefixes request names."""

    def transform(self, aggregate, plain):
        """Generator: yields collectives and returns the transformed values.

        Args:
            aggregate: float32 `[layout.shard_sizes[rank]]`, the sum over the workers.
            plain: float32 `[layout.plain_size]`, the sum over the workers.

        Returns:
            Both, transformed.
        """
        raise NotImplementedError(f"{type(self).__name__} must define transform.")

    def set_global_batch_size(self, samples):
        """See `Exchange.set_global_batch_size`."""

    def bytes_sent(self):
        """Bytes that this worker sends for the transform in each step."""
        return 0
