"""Keras optimizers that exchange the updates of their workers in place of gradients."""

import tensorflow as tf

from tf_onebit._framework_internals.tf_variables import assign_all
from tf_onebit._training.local_updates import LocalUpdates
from tf_onebit._training.optimizer import Distributed


class ExchangesUpdates(LocalUpdates):
    """Mixin on top of `Distributed` that makes the mean of the workers' updates.

    The update of a worker is what its optimizer would do with its gradients alone. It is made
    after accumulation and clipping, and moves the moments of this worker.
    """

    def _exchange(self, gradients, variables, exchanging=None):
        """Returns the mean of the updates that workers make of their gradients.

        See `Distributed`. In a flush the gradients only tell shapes, because the updates that are
        under way have been made in earlier steps.
        """
        if self._current_update.exchanging is not None:
            return self._exchange_updates(gradients, variables, exchanging)
        alike = self.gradient_exchange.exchange_of_alike
        mine = super()._exchange(gradients, variables, alike)
        # Not `Distributed`'s own, which exchanges.
        clipped = super(Distributed, self)._clip_gradients(mine)
        is_sparse = [isinstance(gradient, tf.IndexedSlices) for gradient in clipped]
        if any(is_sparse) and not self.gradient_exchange.steps_of_delay:
            # Their updates would be dense. With their mean, all workers make the same update.
            clipped = self._exchange_some(is_sparse, clipped, variables)
            is_dense = [not sparse for sparse in is_sparse]
            updates = self.local_updates(clipped, variables, self.learning_rate)
            return self._exchange_some(is_dense, updates, variables)
        updates = self.local_updates(clipped, variables, self.learning_rate)
        return self._exchange_updates(updates, variables, exchanging)

    def _exchange_some(self, chosen, tensors, variables):
        """Returns tensors, of which those that are chosen have become their mean.

        Args:
            chosen: list of booleans.
            tensors: list of updates or of gradients.
            variables: list of their variables.
        """
        places = [i for i, is_chosen in enumerate(chosen) if is_chosen]
        if not places:
            return tensors
        mine, theirs = ([items[i] for i in places] for items in (tensors, variables))
        means = dict(zip(places, self._exchange_updates(mine, theirs, None), strict=True))
        return [means.get(i, tensor) for i, tensor in enumerate(tensors)]

    def _exchange_updates(self, updates, variables, exchanging):
        """Returns the mean of the workers' updates, or of gradients on the scale of a mean.

        Args:
            updates: what `local_updates` returned, or `tf.IndexedSlices`.
            variables, exchanging: see `_exchange`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define _exchange_updates.")

    def _clip_gradients(self, grads):
        update = self._current_update
        update.gradients = self._exchange(grads, update.variables, update.exchanging)
        return update.gradients

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        self.add_updates(grads, trainable_variables)

    def _applies(self, gradients, variables):
        # With delay, updates are dense, also those of sparse gradients.
        return super()._applies(list(map(tf.convert_to_tensor, gradients)), variables)

    def _hold(self, gradients, variables):
        super()._hold(gradients, variables)
        # Moments have moved, so the step counts. Adam corrects their bias by this count.
        self._iterations.assign_add(self.gradient_accumulation_steps or 1)

    def _apply_oldest(self, index, number, variables):
        iterations = int(self._iterations.numpy())
        super()._apply_oldest(index, number, variables)
        assign_all(self._iterations, iterations)  # it counted when it was held
