"""OuterOptimizer: a Keras optimizer that changes the model at the end of a block."""

import keras
import numpy as np
import tensorflow as tf

from tf_onebit._bmuf.values import state_type
from tf_onebit._framework_internals.keras_optimizers import copy_for


class OuterOptimizer:
    """Keras optimizer that changes a fragment of the model at the end of a block.

    Its gradient is the workers' mean change in the block, with the opposite sign.

    Args:
        optimizer: Keras optimizer. This one is a copy with a state of its own.
        weights: list of the fragment's weights.

    Attributes:
        scratch: list of variables like the weights. `step` uses them, and nobody else's values.
    """

    def __init__(self, optimizer, weights):
        self._scratch = [
            keras.Variable(tf.zeros(weight.shape, state_type(weight)), name=weight.name)
            for weight in weights
        ]
        self.scratch = [variable.value for variable in self._scratch]
        self._optimizer = copy_for(optimizer, self._scratch, weights)
        self._first = [_small(variable.numpy()) for variable in self._optimizer.variables]

    def restart(self):
        """Begins anew, without moments and at the beginning of a schedule."""
        self._assign(self._first)

    def step(self, model, changes):
        """Makes a step. Returns by how much the model changes: list of tensors.

        Args:
            model: list of variables: the global model, which the caller changes.
            changes: list of tensors: the workers' mean changes in the block.
        """
        for scratch, variable in zip(self.scratch, model, strict=True):
            scratch.assign(variable)
        gradients = [-tf.cast(change, state_type(change)) for change in changes]
        self._optimizer.apply(gradients, self._scratch)
        return [
            tf.cast(scratch - variable, change.dtype)
            for scratch, variable, change in zip(self.scratch, model, changes, strict=True)
        ]

    def state(self):
        """Returns the optimizer's state: dictionary of NumPy arrays."""
        return {str(i): variable.numpy() for i, variable in enumerate(self._optimizer.variables)}

    def load_state(self, state):
        """Loads what `state` returned."""
        self._assign(state[str(i)] for i in range(len(state)))

    def _assign(self, values):
        for variable, value in zip(self._optimizer.variables, values, strict=True):
            variable.assign(value)


def _small(array):
    """Returns an array, which takes no memory if all its values are equal."""
    if array.size and (array == array.flat[0]).all():
        return np.broadcast_to(array.flat[0], array.shape)
    return array
