"""Keras optimizers made in the scope of a strategy, which exchange gradients through it."""

import functools

import keras
import tensorflow as tf

from tf_onebit._framework_internals.keras_optimizers import mix_in, trained_variables_of
from tf_onebit._shares import group_of
from tf_onebit._training.adds_exchanged import AddsExchanged, AddsGradients
from tf_onebit._training.gradient_exchange import GradientExchange
from tf_onebit._training.group_gradients import mean_over_members
from tf_onebit._training.group_optimizer import follow_group, mark_slots
from tf_onebit._training.local_updates import moments_of
from tf_onebit._training.optimizer import Distributed, GlobalLossScale, settings
from tf_onebit._training.update_exchange import ExchangesUpdates
from tf_onebit.distribute.replicas import all_finite, branch, exchange, regrouped
from tf_onebit.distribute.uneven_data import data_of_step, zero_without_data


def adopt(optimizer):
    """Makes a Keras optimizer exchange its gradients. Ignores None.

    The strategy calls it for every new variable, and every optimizer first makes a counter of its
    iterations.
    """
    if optimizer is not None and not _is_adopted(optimizer):
        scales_loss = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        mix_in(optimizer, _LossScaleUnderStrategy if scales_loss else _UnderStrategy)


def require_adopted(optimizer, strategy):
    """Raises ValueError if an optimizer would not exchange its gradients. Ignores None."""
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        return
    if not all(map(_is_adopted, (optimizer, getattr(optimizer, "inner_optimizer", optimizer)))):
        raise ValueError(
            f"The optimizer {optimizer.name!r} was made outside of the scope of the "
            f"{type(strategy).__name__}, and cannot exchange gradients. Make it, or let "
            "model.compile make it, in `with strategy.scope():`."
        )


def _is_adopted(optimizer):
    return isinstance(optimizer, (Distributed, GlobalLossScale))


class _AddsUnderStrategy(AddsExchanged):
    """Mixin on top of `_UnderStrategy`. Each device adds to its own copies of variables."""

    def _add(self, gathered, factor):
        def merged(strategy, factor):
            gathered.add(list(strategy.experimental_local_results(factor)))

        self.replica_context.merge_call(merged, (factor,))


class _GradientsUnderStrategy(_AddsUnderStrategy, AddsGradients):
    """Mixin on top of `_UnderStrategy` for gradient descent without moments."""


class _UpdatesUnderStrategy(_AddsUnderStrategy, ExchangesUpdates):
    """Mixin on top of `_UnderStrategy`. The devices of a worker have the same moments."""

    def _on_this_replica(self, kept):
        return self.replica_context.merge_call(lambda strategy: regrouped(zip(*kept, strict=True)))

    def _exchange_updates(self, updates, variables, exchanging):
        context = self.replica_context
        return exchange(
            context, self.gradient_exchange, updates, variables, exchanging, are_alike=True
        )


class _UnderStrategy(Distributed):
    """Mixin that exchanges gradients through the strategy in whose scope the optimizer was made."""

    of_updates, of_gradients = _UpdatesUnderStrategy, _GradientsUnderStrategy

    @functools.cached_property
    def gradient_exchange(self):
        strategy = self._distribution_strategy
        engine = strategy.extended.engine
        # Keras has scaled the loss by the number of replicas: the sum of gradients is their mean.
        unit, moments = 1.0 / engine.world_size, moments_of(self, strategy.exchange)
        return GradientExchange(strategy.exchange, engine, False, settings(self), unit, moments)

    def build(self, variables):
        super().build(variables)
        follow_group(self.gradient_exchange, variables, self)
        mark_slots(self)

    def apply(self, grads, trainable_variables=None):
        grads = self._of_group(list(grads), trainable_variables)
        has_data, grads = data_of_step(), zero_without_data(grads)
        if has_data is None or not self.gradient_exchange.workers.train_apart:
            super().apply(grads, trainable_variables)
            return
        self._build_first(trainable_variables)

        # On a worker that trains apart, a step without data would count, and momentum would move
        # its weights. The devices of the worker decide together.
        def update(gradients):
            super(_UnderStrategy, self).apply(gradients, trainable_variables)

        def merged(strategy, has_data, gradients):
            def updated():
                strategy.extended.call_for_each_replica(update, (gradients,))
                return True

            parts = strategy.experimental_local_results(has_data)
            tf.cond(tf.reduce_any(tf.stack(parts)), updated, lambda: False)

        self.replica_context.merge_call(merged, (has_data, list(grads)))

    def _of_group(self, gradients, variables):
        """Returns the gradients of the loss of a model-parallel group, if the strategy has any."""
        extended = self._distribution_strategy.extended
        variables = list(trained_variables_of(self) if variables is None else variables)
        groups = group_of(variables)
        if groups is None and extended.members == 1:
            return gradients
        if groups is not extended.model_groups:
            raise ValueError(
                f"A {type(self._distribution_strategy).__name__} with model_parallel="
                f"{extended.members} trains models that its devices hold together. Received: the "
                f"optimizer {self.name!r}, with weights of no such model. Call "
                "tf_onebit.model_parallel.split(model, strategy.model_groups) first."
            )
        follow_group(self.gradient_exchange, variables, self)
        return mean_over_members(gradients, variables, groups)

    @property
    def replica_context(self):
        """The replica context of the optimizer's strategy.

        Raises:
            ValueError: if the optimizer is used outside of it.
        """
        context = tf.distribute.get_replica_context()
        if context is None or context.strategy is not self._distribution_strategy:
            raise ValueError(
                f"The optimizer {self.name!r} was made in the scope of a "
                f"{type(self._distribution_strategy).__name__}, but is used outside of its "
                "replicas. Make model and optimizer in the same `with strategy.scope():`, and "
                "train by model.fit or within strategy.run."
            )
        return context

    def _exchange(self, gradients, variables, exchanging=None):
        context = self.replica_context
        return exchange(context, self.gradient_exchange, gradients, variables, exchanging)

    def _branch(self, predicate, then, otherwise, gradients):
        branch(self.replica_context, predicate, then, otherwise, gradients)

    def _on_replicas(self, function):
        self._distribution_strategy.run(function)

    def flush(self):
        if self.gradient_exchange.held():
            # If one worker flushed alone, others would take its messages for a step's messages.
            self.gradient_exchange.workers.engine.whereabouts.meet("flush", at_once=True)
        super().flush()

    def _all_reduce_sum_gradients(self, grads_and_vars):
        return list(grads_and_vars)  # `_clip_gradients` has done it

    def _backend_apply_gradients(self, grads, trainable_variables):
        context = self.replica_context
        overwrites = self.use_ema and self.ema_overwrite_frequency
        decides = self.gradient_accumulation_steps or overwrites
        if not decides or len(context.strategy.extended.worker_devices) == 1:
            super()._backend_apply_gradients(grads, trainable_variables)
            return
        # Keras decides on each replica whether to update, in a branch in which replicas cannot
        # exchange. Here they decide together.
        with self._current_update.of(trainable_variables):
            if self.gradient_accumulation_steps:
                self._accumulate(context, grads, trainable_variables)
            else:
                self._update(grads, trainable_variables)
        self._update_model_variables_moving_average(self._trainable_variables)
        if overwrites:
            context.merge_call(self._overwrite_at_times)

    def _update(self, gradients, variables):
        clipped = self._clip_gradients(gradients)
        self._apply_weight_decay(variables)
        self._backend_update_step(clipped, variables, self.learning_rate)

    def _accumulate(self, context, gradients, variables):
        steps = self.gradient_accumulation_steps
        accumulators = [self._accumulated_gradients[self._get_variable_index(v)] for v in variables]

        def update(gradients):
            means = [(g + a) / steps for g, a in zip(gradients, accumulators, strict=True)]
            self._update(means, variables)
            self._backend_reset_gradient_accumulators()

        def accumulate(gradients):
            self._backend_increment_gradient_accumulators(gradients, accumulators)

        def merged(strategy, gradients):
            def on_replicas(function):
                return lambda: strategy.extended.call_for_each_replica(function, (gradients,))

            updates = (self._iterations + 1) % steps == 0
            tf.cond(updates, on_replicas(update), on_replicas(accumulate))

        context.merge_call(merged, (list(gradients),))

    def _overwrite_at_times(self, strategy):
        def overwritten():
            self._overwrite_model_variables_with_average_value(self._trainable_variables)
            return True

        overwrites = (self.iterations + 1) % self.ema_overwrite_frequency == 0
        tf.cond(overwrites, overwritten, lambda: False)


class _LossScaleUnderStrategy(GlobalLossScale):
    def apply(self, grads, trainable_variables=None):
        super().apply(zero_without_data(grads), trainable_variables)

    @property
    def gradient_exchange(self):
        return self.inner_optimizer.gradient_exchange

    def check_finite(self, grads):
        present = [gradient for gradient in grads if gradient is not None]
        return all_finite(self.inner_optimizer.replica_context, self.gradient_exchange, present)
