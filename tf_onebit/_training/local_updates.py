"""LocalUpdates: the update that an optimizer would make from one worker's gradients alone."""

import warnings

import keras
import tensorflow as tf

from tf_onebit._framework_internals.keras_optimizers import (
    plain_update_step,
    update_rule_of,
)
from tf_onebit._training.branches import choose
from tf_onebit._training.compiled_rules import compiled_update
from tf_onebit.exchanges.schedule import innermost

# Keras' optimizers whose `update_step` ends with the only change of the variable, by an addition.
# Their subclasses count if they leave `update_step` as it is. Ftrl and ScheduleFreeAdamW are
# missing: they set a variable to a value that they keep beside it. What an exchange has not sent
# yet would be part of their next update, too, and so count twice.
_ADDING = (
    keras.optimizers.SGD,
    keras.optimizers.Adam,  # and AdamW
    keras.optimizers.Adamax,
    keras.optimizers.Nadam,
    keras.optimizers.RMSprop,
    keras.optimizers.Adagrad,
    keras.optimizers.Adadelta,
    keras.optimizers.Adafactor,
    keras.optimizers.Lion,
    keras.optimizers.Lamb,
    keras.optimizers.Muon,
)


def moments_of(optimizer, exchange):
    """Returns whose moments an optimizer keeps: "local" or "after". See `Exchange`.

    Warns if they would be local, but the updates of the optimizer are not known to be additions.

    Args:
        optimizer: `keras.optimizers.Optimizer` that updates weights.
        exchange: the user's exchange.
    """
    moments = expected_moments_of(optimizer, exchange)
    if moments == "local" or not _should_be_local(optimizer, exchange):
        return moments
    name = type(optimizer).__name__
    warnings.warn(
        f'Workers exchange gradients, because {name} is not known to work with moments="local"'
        ". The moments of compressed gradients may cost accuracy. Does its update_step change the "
        "variable once, by self.assign_add or self.assign_sub, and not read it after that? Then "
        "write adds_updates = True in the body of its class. Otherwise use another optimizer, such "
        f'as Adam, or pass moments="after". Received: optimizer={name}, '
        f"exchange={exchange!r}.",
        stacklevel=2,
    )
    return moments


def expected_moments_of(optimizer, exchange):
    """Returns what `moments_of` does, without a warning.

    It is "local" unless the exchange says "after", if the optimizer has moments, and its updates
    can be known before they are made.
    """
    is_known = update_rule_of(optimizer) in [known.update_step for known in _ADDING]
    adds = getattr(optimizer, "adds_updates", is_known)
    return "local" if adds and _should_be_local(optimizer, exchange) else "after"


def _should_be_local(optimizer, exchange):
    """Tells whether moments are local if the updates of the optimizer are additions."""
    # It has other optimizers, which have the moments.
    if isinstance(optimizer, keras.optimizers.MultiOptimizer):
        return False
    return innermost(exchange).moments != "after" and has_moments(optimizer)


def has_moments(optimizer):
    """Tells whether an optimizer is any other than SGD without momentum."""
    is_sgd = update_rule_of(optimizer) is keras.optimizers.SGD.update_step
    return not is_sgd or bool(optimizer.momentum)


class LocalUpdates:
    """Mixin for Keras optimizers that computes updates without making them.

    A Keras optimizer adds its update to a variable as the last act of `update_step`, through its
    methods `assign_add` and `assign_sub`. While `local_updates` runs, these methods keep what they
    would add to a trained variable. Changes of all other variables, such as moments, are made. So
    the moments are those of this worker's gradients.

    The update of a sparse gradient would be dense. So workers exchange this gradient itself, and
    all of them make the same update of the mean.
    """

    _keeps_updates = False
    _target = _added = _kept = None
    _noise = 0.0

    def local_updates(self, gradients, variables, learning_rate, noise=0.0):
        """Returns the updates of variables by the gradients of one worker, and moves its moments.

        Args:
            gradients: list of gradients.
            variables: list of their variables.
            learning_rate: scalar.
            noise: see `compiled_update`.

        Returns:
            List of dense tensors, and of `tf.IndexedSlices` where gradients are sparse. The latter
            are these gradients, and moments have not moved.

        Raises:
            ValueError: if the optimizer changes a variable in another way.
        """
        self._keeps_updates = True
        self._noise = noise
        try:
            # Not `update_step`: an optimizer may change other variables before it (Nadam).
            super()._backend_update_step(gradients, variables, learning_rate)
        finally:
            self._keeps_updates, self._noise = False, 0.0
        return self._on_this_replica(self._kept)

    def _on_this_replica(self, kept):
        """Returns this replica's tensors, of a list of tuples with those of all replicas."""
        return [tensors[0] for tensors in kept]

    def add_updates(self, updates, variables, learning_rate):
        """Adds updates to variables, and makes those of sparse gradients.

        Args:
            updates: list like what `local_updates` returns.
            variables: list of the variables.
            learning_rate: scalar.
        """
        plain_update_step(self, updates, variables, learning_rate)

    def _distributed_tf_update_step(self, distribution, grads_and_vars, learning_rate):
        update = self._update_of if self._keeps_updates else self._make
        self._kept = [
            distribution.extended.update(
                variable, update, args=(gradient, learning_rate), group=False
            )
            for gradient, variable in grads_and_vars
        ]

    def _update_of(self, variable, gradient, learning_rate):
        if isinstance(gradient, tf.IndexedSlices):
            return gradient
        update = compiled_update(self, gradient, variable, learning_rate, self._noise_of(variable))
        if update is None:
            update = self._update_by_keras(variable, gradient, learning_rate)
        return update

    def _noise_of(self, variable):
        """Returns the noise that is taken off squares of a variable's gradients."""
        del variable
        return self._noise

    def _update_by_keras(self, variable, gradient, learning_rate):
        # A gradient that is not finite must not reach the moments, but end the step in an error.
        # In float16 a sum of finite values may overflow.
        finite = tf.math.is_finite(tf.reduce_sum(tf.cast(gradient, tf.float32)))
        self._target, self._added = variable, None
        try:
            zeroed = choose(finite, gradient, lambda: tf.zeros_like(gradient))
            self.update_step(zeroed, variable, learning_rate)
            if self._added is None:
                raise self._not_an_addition("not at all, or by a method of the variable")
            update = self._added
            return choose(finite, update, lambda: update + float("nan"))
        finally:
            self._target = self._added = None

    def _make(self, variable, update, learning_rate):
        if isinstance(update, tf.IndexedSlices):
            self.update_step(update, variable, learning_rate)
        else:
            variable.assign_add(tf.cast(update, variable.dtype))

    def assign(self, variable, value):
        if variable is self._target:
            raise self._not_an_addition("by self.assign")
        super().assign(variable, value)

    def assign_add(self, variable, value):
        if variable is self._target:
            self._keep(value)
        else:
            super().assign_add(variable, value)

    def assign_sub(self, variable, value):
        if variable is self._target:
            self._keep(-tf.convert_to_tensor(value))
        else:
            super().assign_sub(variable, value)

    def _keep(self, update):
        if self._added is not None:
            raise self._not_an_addition("more than once")
        self._added = tf.cast(tf.convert_to_tensor(update), self._target.dtype)

    def _not_an_addition(self, how):
        return ValueError(
            f"With adds_updates = True, {type(self).__name__}.update_step must change a variable "
            "once, by self.assign_add or self.assign_sub. Received: an update_step that changes "
            f"{self._target.name!r} {how}. Rewrite it, or leave out adds_updates, so that workers "
            'exchange gradients as with moments="after".'
        )
