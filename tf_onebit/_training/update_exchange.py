"""Keras optimizers that exchange the updates of their workers in place of gradients."""

import tensorflow as tf

from tf_onebit._framework_internals.tf_variables import assign_all
from tf_onebit._training.adds_exchanged import AddsExchanged
from tf_onebit._training.local_updates import LocalUpdates
from tf_onebit.exchanges.gradients import values_of, with_values


class ExchangesUpdates(AddsExchanged, LocalUpdates):
    """Mixin on top of `Distributed` that makes the mean of the workers' updates.

    The update of a worker is what its optimizer would do with its gradients alone. It is made
    after accumulation and clipping, and moves the moments of this worker. In a warm-up, workers
    exchange gradients, and all make the update of their mean.
    """

    def _exchange(self, gradients, variables, exchanging=None):
        """Returns the mean of the updates that workers make of their gradients.

        See `Distributed`. In a flush the gradients only tell shapes, because the updates that are
        under way have been made in earlier steps.
        """
        if self._current_update.exchanging is not None:
            return self._exchange_updates(gradients, variables, exchanging)
        self._current_update.variables = variables
        gradients = _in_types_of(variables, gradients)
        exchange = self.gradient_exchange
        before, noise = exchange.exchange_of_alike, exchange.missing_noise
        if self._current_update.warm:
            before, noise = exchange.without_compression, 0.0
            exchanging = exchange.of_updates_alike
        mine = super()._exchange(gradients, variables, before)
        updates = self.local_updates(self._clipped(mine), variables, self.learning_rate, noise)
        return self._exchange_updates(updates, variables, exchanging)

    def _updates_warm_up(self):
        return self.gradient_exchange.has_warm_up

    def _exchanged_of(self, gradients, variables):
        return super()._exchanged_of(_in_types_of(variables, gradients), variables)

    def _clipped(self, gradients):
        """Returns a worker's gradients as Keras would clip them, sparse ones as sparse ones."""
        clipped = self._clip(list(map(values_of, gradients)))
        return list(map(with_values, gradients, clipped))

    def _exchange_updates(self, updates, variables, exchanging):
        """Returns the mean of the workers' updates.

        Args:
            updates: what `local_updates` returned.
            variables, exchanging: see `_exchange`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define _exchange_updates.")

    def _clip_gradients(self, grads):
        return self._exchange_to_add(grads)

    def _factor(self, learning_rate):
        return tf.constant(1.0)

    def _make_updates(self, gradients, variables, learning_rate):
        self.add_updates(gradients, variables, learning_rate)

    def _hold(self, gradients, variables):
        super()._hold(gradients, variables)
        # Moments have moved, so the step counts. Adam corrects their bias by this count.
        self._iterations.assign_add(self.gradient_accumulation_steps or 1)

    def _apply_oldest(self, index, number, variables):
        iterations = int(self._iterations.numpy())
        super()._apply_oldest(index, number, variables)
        assign_all(self._iterations, iterations)  # it counted when it was held


def _in_types_of(variables, gradients):
    """Returns gradients in the types of their variables, as Keras casts them in `update_step`.

    Gradients and updates then have the same exchange.
    """
    return [
        with_values(gradient, tf.cast(values_of(gradient), variable.dtype))
        for gradient, variable in zip(gradients, variables, strict=True)
    ]
