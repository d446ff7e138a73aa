"""Keras optimizers that exchange gradients between workers."""

import functools

import tensorflow as tf

from tf_onebit.framework_internals.tf_variables import assign_all, copies_of


def settings(optimizer):
    """What workers must agree on beside gradients: list of (what, value) pairs of strings."""
    return [
        ("optimizer", type(optimizer).__name__),
        ("gradient_accumulation_steps", str(optimizer.gradient_accumulation_steps)),
    ]


class Update:
    """What the methods of an optimizer tell each other within an update.

    Attributes:
        variables: list of those whose gradients it has been given.
        gradients: list of what their exchange has returned.
        exchanging: function that takes the place of a call of the `GradientExchange`, or None.
        flushes: dictionary of functions that have been traced, by what is under way.
    """

    def __init__(self):
        self.variables = self.gradients = self.exchanging = None
        self.flushes = {}


class Distributed:
    """Exchanges gradients between Keras' steps of accumulation and clipping.

    A mixin for classes of Keras optimizers.

    Attributes:
        gradient_exchange: `GradientExchange`.
    """

    @functools.cached_property
    def _current_update(self):
        return Update()

    def trace_flushes_again(self):
        """Has flushes traced again, as what they do has changed."""
        self._current_update.flushes.clear()

    def _build_first(self, trainable_variables):
        """Makes the optimizer's variables, before a branch of a graph, where none can be made."""
        if not self.built:
            with tf.init_scope():
                self.build(trainable_variables)

    def apply(self, grads, trainable_variables=None):
        grads = list(grads)
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
            if len(grads) != len(trainable_variables):
                raise ValueError(
                    "An optimizer needs one gradient per variable, or None in its place. Received: "
                    f"{len(grads)} gradients for {len(trainable_variables)} variables."
                )
        if not self.gradient_exchange.steps_of_delay:
            super().apply(grads, trainable_variables)
            return
        if trainable_variables is None:
            trainable_variables = self._trainable_variables
        self._build_first(trainable_variables)
        # As Keras does later: what is missing has no part on each of the devices of a branch.
        grads, variables = self._filter_empty_gradients(grads, trainable_variables)

        def update(gradients):
            super(Distributed, self).apply(gradients, variables)

        def hold(gradients):
            self._hold(gradients, variables)

        # Decided by what has been before, so that what is under way is there at the beginning.
        self._branch(lambda gradients: self._applies(gradients, variables), update, hold, grads)

    def _branch(self, predicate, then, otherwise, gradients):
        """Calls one of two functions with the gradients, by a predicate of those of one worker."""

        def calling(function):
            def call():
                function(gradients)
                return True

            return call

        tf.cond(predicate(gradients), calling(then), calling(otherwise))

    def _applies(self, gradients, variables):
        """Whether this step has something to apply, or to accumulate: boolean scalar."""
        steps = self.gradient_accumulation_steps
        if not steps:
            return self.gradient_exchange.delivers(gradients, variables)
        dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
        accumulates = tf.not_equal((self._iterations + 1) % steps, 0)
        return accumulates | self.gradient_exchange.delivers(dense, variables)

    def _hold(self, gradients, variables):
        """What takes the place of `apply` in a step that has nothing to apply: counts nothing."""
        if self.loss_scale_factor is not None:
            gradients = [gradient / self.loss_scale_factor for gradient in gradients]
        steps = self.gradient_accumulation_steps
        if not steps:
            self._exchange(gradients, variables, self.gradient_exchange.hold)
            return
        sums = [self._accumulated_gradients[self._get_variable_index(v)] for v in variables]
        means = [(g + a) / steps for g, a in zip(gradients, sums, strict=True)]
        self._exchange(means, variables, self.gradient_exchange.hold)
        self._backend_reset_gradient_accumulators()
        self._iterations.assign_sub(steps - 1)

    def flush(self):
        """Applies what is under way: see `tf_onebit.training.model_optimizers.flush`.

        All workers do so after the same step. Over Horovod one may alone, if it is late by one step
        and no gradients are checked before they are encoded: the others' next step answers it.
        """
        for index, number, variables in self.gradient_exchange.held():
            for left in range(number, 0, -1):
                self._apply_oldest(index, left, variables)

    def _apply_oldest(self, index, number, variables):
        functions = self._current_update.flushes
        if (index, number) not in functions:
            update = functools.partial(self._release, index, number, variables)
            functions[index, number] = tf.function(
                lambda: self._on_replicas(update), autograph=False
            )
        steps = self.gradient_accumulation_steps
        if not steps:
            functions[index, number]()
            return
        # A whole update, in the midst of what is being accumulated for the next.
        iterations = int(self._iterations.numpy())
        copies = [c for v in self._accumulated_gradients for c in copies_of(v)]
        accumulated = [copy.numpy() for copy in copies]
        assign_all(self._iterations, iterations // steps * steps + steps - 1)
        functions[index, number]()
        assign_all(self._iterations, iterations + steps)
        for copy, value in zip(copies, accumulated, strict=True):
            copy.assign(value)

    def _release(self, index, number, variables):
        nothing = [tf.zeros(variable.shape, variable.dtype) for variable in variables]
        self._current_update.exchanging = functools.partial(
            self.gradient_exchange.release, index, number
        )
        try:
            super().apply(nothing, variables)
        finally:
            self._current_update.exchanging = None

    def _on_replicas(self, function):
        """Calls a function where `apply` would be called."""
        function()

    def finalize_variable_values(self, var_list):
        # At the end of `fit`.
        self.flush()
        self.gradient_exchange.advise()
        self.gradient_exchange.engine.whereabouts.end_fit(self.iterations.numpy())
        super().finalize_variable_values(var_list)
        # What callbacks have written by now is there when a program reads it, on any worker. And a
        # worker whose data have ended earlier does not leave as if all were well.
        self.gradient_exchange.meet("end of fit", self.iterations)

    def _exchange(self, gradients, variables, exchanging=None):
        """The exchanged gradients of one worker.

        Args:
            gradients, variables: lists.
            exchanging: method of `gradient_exchange`. Default: to call it.
        """
        return (exchanging or self.gradient_exchange)([gradients], variables)[0]

    def _backend_apply_gradients(self, grads, trainable_variables):
        # The accumulated gradients are met in `_clip_gradients`, which is not told of what.
        self._current_update.variables = trainable_variables
        super()._backend_apply_gradients(grads, trainable_variables)
        self._current_update.gradients = None

    def _clip_gradients(self, grads):
        update = self._current_update
        update.gradients = self._exchange(grads, update.variables, update.exchanging)
        return super()._clip_gradients(update.gradients)

    def _apply_weight_decay(self, variables):
        # Not before the exchange is known to have succeeded: an error must leave the weights.
        exchanged = tf.nest.flatten(self._current_update.gradients, expand_composites=True)
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
