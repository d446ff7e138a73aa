"""Keras optimizers that exchange gradients between workers."""

import contextlib
import functools

import tensorflow as tf

from tf_onebit._framework_internals.keras_optimizers import mix_in, velocity_for
from tf_onebit._framework_internals.tf_variables import assign_all, copies_of
from tf_onebit._training.adds_exchanged import AddsExchanged, is_plain_descent
from tf_onebit._training.group_gradients import clipped_by_whole


def settings(optimizer):
    """Returns the settings in which workers must agree: list of (what, value) of strings."""
    return [
        ("optimizer", type(optimizer).__name__),
        ("gradient_accumulation_steps", str(optimizer.gradient_accumulation_steps)),
    ]


class Update:
    """State that the methods of an optimizer share within an update.

    Attributes:
        variables: list of the variables that are updated.
        gradients: list of their exchanged gradients.
        exchanging: function that takes the place of a call of the `GradientExchange`, or None.
        gathered: `Gathered`, if what workers have exchanged is still to be added, or None.
        warm: number of replicas whose updates in a warm-up are being traced.
        flushes: dictionary of traced flush functions, by (index of the exchange, number of steps
            held).
    """

    def __init__(self):
        self.variables = self.gradients = self.exchanging = self.gathered = None
        self.warm = 0
        self.flushes = {}

    @contextlib.contextmanager
    def in_warm_up(self):
        """Context of an update in a warm-up."""
        self.warm += 1
        try:
            yield
        finally:
            self.warm -= 1

    @contextlib.contextmanager
    def of(self, variables):
        """Context of an update of a list of variables. At its end, it is free of tensors."""
        self.variables = variables
        try:
            yield
        finally:
            self.gradients = self.gathered = None


class Distributed:
    """Mixin for Keras optimizers that exchanges gradients after accumulation, before clipping.

    Attributes:
        gradient_exchange: `GradientExchange`.
        of_updates: subclass of `ExchangesUpdates`, which is mixed in on top of this class where
            workers exchange updates.
        of_gradients: subclass of `AddsGradients`, which is mixed in where updates are a multiple of
            the exchanged gradients.
    """

    of_updates: type
    of_gradients: type

    @functools.cached_property
    def _current_update(self):
        return Update()

    def trace_flushes_again(self):
        """Drops the traced flushes, so that they are traced again after a change."""
        self._current_update.flushes.clear()

    def _build_first(self, trainable_variables):
        """Creates the optimizer's variables, because a branch of a graph cannot create any."""
        if not self.built:
            with tf.init_scope():
                self.build(trainable_variables)

    def _begin_exchange(self):
        """Decides what workers exchange, as late as a backup can still change it."""
        if isinstance(self, AddsExchanged):
            return
        if self.gradient_exchange.exchanges_updates:
            mix_in(self, self.of_updates)
            self.gradient_exchange.clear_where_sent(functools.partial(velocity_for, self))
        elif self._adds_gradients():
            mix_in(self, self.of_gradients)

    def _adds_gradients(self):
        """Tells whether updates are a multiple of the exchanged gradients."""
        return self.gradient_exchange.changes_gradients and is_plain_descent(self)

    def apply(self, grads, trainable_variables=None):
        self._begin_exchange()
        grads = list(grads)
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
            if len(grads) != len(trainable_variables):
                raise ValueError(
                    "An optimizer needs one gradient per variable, or None in its place. Received: "
                    f"{len(grads)} gradients for {len(trainable_variables)} variables."
                )
        has_delay, has_warm_up = self.gradient_exchange.steps_of_delay, self._updates_warm_up()
        if not has_delay and not has_warm_up:
            super().apply(grads, trainable_variables)
            return
        if trainable_variables is None:
            trainable_variables = self._trainable_variables
        self._build_first(trainable_variables)
        # Keras would do so later, but a branch on several devices cannot take a missing gradient.
        grads, variables = self._filter_empty_gradients(grads, trainable_variables)

        def update(gradients):
            super(Distributed, self).apply(gradients, variables)

        def hold(gradients):
            self._hold(gradients, variables)

        def update_in_warm_up(gradients):
            with self._current_update.in_warm_up():
                update(gradients)

        def update_or_hold(gradients):
            if has_delay:
                self._branch(lambda mine: self._applies(mine, variables), update, hold, gradients)
            else:
                update(gradients)

        # Choices depend on earlier steps only, so that messages under way can be read at once, and
        # gradients can be sent before the last one is computed.
        if has_warm_up:
            self._branch(
                lambda mine: self._is_warm(mine, variables),
                update_in_warm_up,
                update_or_hold,
                grads,
            )
        else:
            update_or_hold(grads)

    def _updates_warm_up(self):
        """Tells whether updates in a warm-up differ from those after it."""
        return False

    def _is_warm(self, gradients, variables):
        """Tells whether this step is within a warm-up: boolean scalar."""
        exchanged = self._exchanged_of(gradients, variables)
        if not exchanged:
            return tf.constant(False)
        return self.gradient_exchange.is_warm(*map(list, zip(*exchanged, strict=True)))

    def _exchanged_of(self, gradients, variables):
        """Returns those pairs of gradients and variables that are exchanged, in their types."""
        if self.gradient_accumulation_steps:
            gradients = map(tf.convert_to_tensor, gradients)  # as Keras accumulates them
        return list(zip(gradients, variables, strict=True))

    def _branch(self, predicate, then, otherwise, gradients):
        """Calls `then` or `otherwise` with the gradients of a worker, by a predicate of them."""

        def calling(function):
            def call():
                function(gradients)
                return True

            return call

        tf.cond(predicate(gradients), calling(then), calling(otherwise))

    def _applies(self, gradients, variables):
        """Tells whether this step applies or accumulates gradients: boolean scalar."""
        steps = self.gradient_accumulation_steps
        if not steps:
            return self.gradient_exchange.delivers(gradients, variables)
        dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
        accumulates = tf.not_equal((self._iterations + 1) % steps, 0)
        return accumulates | self.gradient_exchange.delivers(dense, variables)

    def _hold(self, gradients, variables):
        """Takes the place of `apply` in a step without gradients to apply.

        Such a step does not count as an iteration.
        """
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
        """Applies gradients under way: see `tf_onebit._training.model_optimizers.flush`.

        All workers flush after the same step. Over Horovod, a worker that is one step behind may
        flush alone, unless gradients are checked before they are encoded. The next step of the
        other workers then answers its collectives.
        """
        self._begin_exchange()
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
        # One whole update, while gradients are being accumulated for the next one.
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
        """Calls a function in the context in which `apply` would be called."""
        function()

    def finalize_variable_values(self, var_list):
        # Keras calls this at the end of `fit`.
        self.flush()
        self.gradient_exchange.advise()
        self.gradient_exchange.workers.engine.whereabouts.end_fit(self.iterations.numpy())
        super().finalize_variable_values(var_list)
        # After this meeting, files that callbacks have written can be read on any worker. It also
        # catches a worker whose data have ended too early.
        self.gradient_exchange.workers.meet("end of fit", self.iterations)

    def _exchange(self, gradients, variables, exchanging=None):
        """Returns the exchanged gradients of one worker.

        Args:
            gradients: list of gradients.
            variables: list of their variables.
            exchanging: method of `gradient_exchange`. Default: its `__call__`.
        """
        return (exchanging or self.gradient_exchange)([gradients], variables)[0]

    def _backend_apply_gradients(self, grads, trainable_variables):
        # `_clip_gradients` gets the accumulated gradients, but not their variables.
        with self._current_update.of(trainable_variables):
            super()._backend_apply_gradients(grads, trainable_variables)

    def _clip_gradients(self, grads):
        update = self._current_update
        update.gradients = self._exchange(grads, update.variables, update.exchanging)
        return self._clip(update.gradients)

    @property
    def _clip(self):
        """Function that clips a list of gradients as Keras does."""
        clip, group = super()._clip_gradients, self.gradient_exchange.workers.model_group
        if group is None:
            return clip
        variables = self._current_update.variables
        return lambda gradients: clipped_by_whole(gradients, variables, group, self, clip)

    def _apply_weight_decay(self, variables):
        # Wait for the exchange: if it fails, the weights must stay as they were.
        exchanged = tf.nest.flatten(self._current_update.gradients, expand_composites=True)
        with tf.control_dependencies(exchanged):
            super()._apply_weight_decay(variables)


class GlobalLossScale:
    """Mixin for `keras.optimizers.LossScaleOptimizer` that skips steps on all workers together.

    A step is skipped if a gradient of any worker is not finite.

    Attributes:
        gradient_exchange: `GradientExchange`.
    """

    def check_finite(self, grads):
        (finite,) = self.gradient_exchange.all_finite([grads])
        return finite
