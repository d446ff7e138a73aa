"""Keras optimizers that add what workers exchange to variables while they decode it."""

import keras
import tensorflow as tf

from tf_onebit._framework_internals.keras_optimizers import original_class
from tf_onebit._framework_internals.tf_variables import copies_by_device, copies_of
from tf_onebit._training.local_updates import has_moments
from tf_onebit.ops.variables import can_update


def is_plain_descent(optimizer):
    """Tells whether an optimizer only subtracts a multiple of its gradients from variables."""
    rule = original_class(optimizer)._backend_update_step
    clips = optimizer.clipnorm, optimizer.global_clipnorm, optimizer.clipvalue
    return (
        not has_moments(optimizer)
        and rule is keras.optimizers.SGD._backend_update_step
        and all(clip is None for clip in clips)
    )


def _can_add_to(variables):
    """Tells whether one op can update the copies of all variables on a device."""
    as_many = len({len(copies_of(variable)) for variable in variables}) == 1
    return as_many and all(map(can_update, copies_by_device(variables)))


class AddsExchanged:
    """Mixin on top of `Distributed` for updates that are a multiple of what is exchanged.

    Decoding and update are then one pass over the weights, with the same bits: see `Adding`. Where
    an exchange cannot do so, for example for sparse gradients, the optimizer makes the update.
    """

    def _exchange_to_add(self, gradients):
        """Returns exchanged gradients, or empty tensors in place of those that are still added."""
        update = self._current_update
        exchanging = update.exchanging
        if exchanging is None and _can_add_to(update.variables):
            exchanging = self._gather
        update.gradients = self._exchange(gradients, update.variables, exchanging)
        return update.gradients

    def _gather(self, gradients, variables):
        """Takes the place of a call of the `GradientExchange`."""
        gathered = self.gradient_exchange.gather(gradients, variables)
        self._current_update.gathered = gathered
        return gathered.exchanged

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        gathered = self._current_update.gathered
        if gathered is not None:
            grads, trainable_variables = gathered.left_of(grads, trainable_variables)
            self._add(gathered, self._factor(learning_rate))
        if grads:
            self._make_updates(grads, trainable_variables, learning_rate)

    def _add(self, gathered, factor):
        """Adds what has been gathered, times a factor, to the variables of this process."""
        gathered.add([factor])

    def _factor(self, learning_rate):
        """Returns the factor of exchanged values in an update: float32 scalar."""
        raise NotImplementedError(f"{type(self).__name__} must define _factor.")

    def _make_updates(self, gradients, variables, learning_rate):
        """Updates variables by exchanged gradients that were not added."""
        super()._backend_update_step(gradients, variables, learning_rate)


class AddsGradients(AddsExchanged):
    """Mixin on top of `Distributed` for gradient descent without moments."""

    def _clip_gradients(self, grads):
        if is_plain_descent(self):
            return self._exchange_to_add(grads)
        return super()._clip_gradients(grads)  # the program has changed settings meanwhile

    def _factor(self, learning_rate):
        return -tf.cast(learning_rate, tf.float32)
