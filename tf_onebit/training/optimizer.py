"""Keras optimizers that exchange gradients between workers."""

import keras
import tensorflow as tf


def subclass(optimizer_class, mixin):
    """A subclass that carries its class's name, as Keras saves an optimizer by that."""
    namespace = {"__module__": optimizer_class.__module__}
    made = type(optimizer_class.__name__, (mixin, optimizer_class), namespace)
    registered = keras.saving.get_registered_name(optimizer_class)
    package, separator, name = registered.rpartition(">")
    if separator:
        # Not one of Keras' own. The name goes on standing for the original.
        for cls in (made, keras.saving.get_registered_object(registered)):
            keras.saving.register_keras_serializable(package, name)(cls)
    return made


def settings(optimizer):
    """What workers must agree on beside gradients: list of (what, value) pairs of strings."""
    return [
        ("optimizer", type(optimizer).__name__),
        ("gradient_accumulation_steps", str(optimizer.gradient_accumulation_steps)),
    ]


class Distributed:
    """Exchanges gradients between Keras' steps of accumulation and clipping.

    A mixin for classes of Keras optimizers.

    Attributes:
        gradient_exchange: `GradientExchange`.
    """

    def _build_first(self, trainable_variables):
        """Makes the optimizer's variables, before a branch of a graph, where none can be made."""
        if not self.built:
            with tf.init_scope():
                self.build(trainable_variables)

    def _exchange(self, gradients, variables):
        """The exchanged gradients of one worker."""
        return self.gradient_exchange([gradients], variables)[0]

    def _backend_apply_gradients(self, grads, trainable_variables):
        # The accumulated gradients are met in `_clip_gradients`, which is not told of what.
        self.gradient_exchange.variables = trainable_variables
        super()._backend_apply_gradients(grads, trainable_variables)
        self.gradient_exchange.latest = None

    def _clip_gradients(self, grads):
        exchange = self.gradient_exchange
        exchange.latest = self._exchange(grads, exchange.variables)
        return super()._clip_gradients(exchange.latest)

    def _apply_weight_decay(self, variables):
        # Not before the exchange is known to have succeeded: an error must leave the weights.
        exchanged = tf.nest.flatten(self.gradient_exchange.latest, expand_composites=True)
        with tf.control_dependencies(exchanged):
            super()._apply_weight_decay(variables)


class GlobalLossScale:
    """Decides on the gradients of all workers whether a step is skipped.

    A mixin for classes like `keras.optimizers.LossScaleOptimizer`.

    Attributes:
        gradient_exchange: `GradientExchange`.
    """

    def check_finite(self, grads):
        (finite,) = self.gradient_exchange.all_finite([grads])
        return finite
