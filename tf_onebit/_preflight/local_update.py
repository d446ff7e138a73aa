"""The part of an update that an optimizer makes itself where an exchange adds to the weights."""

import tensorflow as tf

from tf_onebit._framework_internals.keras_optimizers import (
    mix_in,
    plain_update_step,
    with_same_state,
)
from tf_onebit._training.adds_exchanged import is_plain_descent
from tf_onebit._training.local_updates import LocalUpdates, expected_moments_of
from tf_onebit._training.model_optimizers import inner_optimizer
from tf_onebit.exchanges import OneBit
from tf_onebit.exchanges.adding import Adding


def adds_to_weights(exchange, optimizer):
    """Tells whether an exchange of a job adds what it decodes to the weights.

    Args:
        exchange: `Exchange`.
        optimizer: Keras optimizer that updates weights.
    """
    is_adding = isinstance(exchange, Adding) and is_plain_descent(optimizer)
    return is_adding or expected_moments_of(optimizer, exchange) == "local"


def with_local_update(optimizer):
    """Returns an optimizer with the same variables that leaves the adding to an exchange.

    Args:
        optimizer: Keras optimizer.

    Returns:
        The optimizer, or None if no exchange adds to its weights.
    """
    inner = inner_optimizer(optimizer)
    if not adds_to_weights(OneBit(), inner):
        return None
    leaving = with_same_state(inner)
    mix_in(leaving, _LeavesAdding if is_plain_descent(inner) else _LeavesAddingUpdates)
    if inner is optimizer:
        return leaving
    outer = with_same_state(optimizer)
    outer.inner_optimizer = leaving
    return outer


class _LeavesAdding:
    """Mixin for Keras optimizers that computes what workers exchange, and adds none of it.

    It does update weights by sparse gradients, which an exchange does not add.
    """

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        exchanged = self._exchanged(grads, trainable_variables, learning_rate)
        pairs = list(zip(exchanged, trainable_variables, strict=True))
        # TensorFlow leaves out what nothing waits for.
        with tf.control_dependencies([e for e, _ in pairs if not isinstance(e, tf.IndexedSlices)]):
            self._iterations.assign_add(0)
        sparse = [pair for pair in pairs if isinstance(pair[0], tf.IndexedSlices)]
        if sparse:
            plain_update_step(self, *map(list, zip(*sparse, strict=True)), learning_rate)

    def _exchanged(self, gradients, variables, learning_rate):
        """Returns what workers exchange: list of tensors."""
        return gradients


class _LeavesAddingUpdates(_LeavesAdding, LocalUpdates):
    """Mixin for optimizers whose workers exchange updates."""

    def _exchanged(self, gradients, variables, learning_rate):
        return self.local_updates(gradients, variables, learning_rate)
