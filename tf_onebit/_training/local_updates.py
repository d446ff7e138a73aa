"""LocalUpdates: the update that an optimizer would make from one worker's gradients alone."""

import tensorflow as tf

from tf_onebit._framework_internals.keras_optimizers import plain_update_step
from tf_onebit.exchanges.gradients import values_of


class LocalUpdates:
    """Mixin for Keras optimizers that computes updates without making them.

    A Keras optimizer adds its update to a variable as the last act of `update_step`, through its
    methods `assign`, `assign_add` and `assign_sub`. While `local_updates` runs, these methods keep
    what they would add to a trained variable. Changes of all other variables, such as moments, are
    made. So the moments are those of this worker's gradients.
    """

    _keeps_updates = False
    _target = _kept = None

    def local_updates(self, gradients, variables, learning_rate):
        """Returns the updates of variables by the gradients of one worker, and moves its moments.

        Args:
            gradients: list of gradients.
            variables: list of their variables.
            learning_rate: scalar.

        Returns:
            List of dense tensors. To make the update of a variable, add its tensor.

        Raises:
            ValueError: if the optimizer changes a variable in another way.
        """
        self._keeps_updates = True
        try:
            # Not `update_step`: an optimizer may change other variables before it (Nadam).
            super()._backend_update_step(gradients, variables, learning_rate)
        finally:
            self._keeps_updates = False
        return self._on_this_replica(self._kept)

    def _on_this_replica(self, kept):
        """Returns this replica's tensors, of a list of tuples with those of all replicas."""
        return [tensors[0] for tensors in kept]

    def add_updates(self, updates, variables):
        """Adds updates to variables: lists of equal length."""
        plain_update_step(self, updates, variables, learning_rate=None)

    def _distributed_tf_update_step(self, distribution, grads_and_vars, learning_rate):
        if learning_rate is None:
            for update, variable in grads_and_vars:
                distribution.extended.update(variable, _add, args=(update,), group=False)
        elif self._keeps_updates:
            self._kept = [
                distribution.extended.update(
                    variable, self._update_of, args=(gradient, learning_rate), group=False
                )
                for gradient, variable in grads_and_vars
            ]
        else:
            super()._distributed_tf_update_step(distribution, grads_and_vars, learning_rate)

    def _update_of(self, variable, gradient, learning_rate):
        # A gradient that is not finite must not reach the moments, but end the step in an error.
        finite = tf.math.is_finite(tf.reduce_sum(values_of(gradient)))
        self._target, self._update = variable, None
        try:
            self.update_step(_zeroed(gradient, finite), variable, learning_rate)
            if self._update is None:
                raise ValueError(
                    f"{type(self).__name__} does not tell its update of {variable.name!r}: it must "
                    "make it by self.assign_add, self.assign_sub or self.assign. Change its "
                    'update_step, or exchange gradients: pass moments="after" to the exchange.'
                )
            nan = tf.constant(float("nan"), self._update.dtype)
            return self._update + tf.where(finite, tf.zeros_like(nan), nan)
        finally:
            self._target = self._update = None

    def assign(self, variable, value):
        if variable is self._target:
            self._update = _dense(value, variable) - variable
        else:
            super().assign(variable, value)

    def assign_add(self, variable, value):
        if variable is self._target:
            self._update = _dense(value, variable)
        else:
            super().assign_add(variable, value)

    def assign_sub(self, variable, value):
        if variable is self._target:
            self._update = -_dense(value, variable)
        else:
            super().assign_sub(variable, value)


def _dense(value, variable):
    return tf.cast(tf.convert_to_tensor(value), variable.dtype)


def _zeroed(gradient, finite):
    """Returns a gradient, or zeros in its place if it is not finite."""
    values = values_of(gradient)
    kept = tf.where(finite, values, tf.zeros_like(values))
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(kept, gradient.indices, gradient.dense_shape)
    return kept


def _add(variable, update):
    variable.assign_add(tf.cast(update, variable.dtype))
