"""Variables whose gradients stay with their worker."""

import keras
import tensorflow as tf

from tf_onebit.exchanges.gradients import times


class LocalVariables:
    """Variables that each worker updates by its own gradients.

    Args:
        is_scaled: whether their gradients are divided by the number of workers. Each worker then
            gets its part of the mean loss's gradient, as in Horovod.
    """

    def __init__(self, is_scaled=True):
        self._is_scaled = is_scaled
        self._refs = set()

    def add(self, variable):
        """Adds a `tf.Variable` or a Keras variable."""
        if not isinstance(variable, (tf.Variable, keras.Variable)):
            raise ValueError(
                "A local variable must be a tf.Variable or a keras.Variable. Received: "
                f"{variable!r} of type {type(variable).__name__}. Pass for example those of "
                "layer.trainable_variables, one by one."
            )
        self._refs.add(reference(variable))

    def __contains__(self, variable):
        return reference(variable) in self._refs

    def exchange_others(self, exchange, gradients, variables, world_size):
        """Exchanges the gradients of all variables but the local ones.

        Args:
            exchange: function of a list of gradients and a list of their variables.
            gradients, variables: lists of equal length.
            world_size: number of workers.

        Returns:
            List of gradients in the same order: exchanged ones, and this worker's own.
        """
        if not self._refs:
            return exchange(gradients, variables)
        others = [i for i, variable in enumerate(variables) if variable not in self]
        if not others:
            return times(gradients, self._factor(world_size))
        exchanged = exchange([gradients[i] for i in others], [variables[i] for i in others])
        results = times(gradients, self._factor(world_size))
        for i, gradient in zip(others, exchanged, strict=True):
            results[i] = gradient
        return results

    def _factor(self, world_size):
        return 1 / world_size if self._is_scaled else 1.0


def reference(variable):
    """Returns a hashable object that a variable shares with the Keras variable around it."""
    return (variable.value if isinstance(variable, keras.Variable) else variable).ref()


def variables_of(layers):
    """Returns the trainable variables of layers: list.

    Args:
        layers: Keras layer, list of them, or None.

    Raises:
        ValueError: for anything else, and for a layer that is not built yet.
    """
    if layers is None:
        return []
    layers = [layers] if isinstance(layers, keras.layers.Layer) else list(layers)
    for layer in layers:
        if not isinstance(layer, keras.layers.Layer):
            raise ValueError(
                f"local_layers must be Keras layers. Received: {layer!r} of type "
                f"{type(layer).__name__}. Pass for example [model.layers[0]], and single variables "
                "to register_local_var."
            )
        if not layer.built:
            raise ValueError(
                f"local_layers must be built. Received: the layer {layer.name!r}, which has no "
                "variables yet. Build the layer or its model first."
            )
    return [variable for layer in layers for variable in layer.trainable_variables]
