"""Keras optimizers that are made in the scope of a strategy exchange gradients through it."""

import functools

import keras
import tensorflow as tf
from keras.src.backend.common import global_state

from tf_onebit.distribute.replicas import all_finite, exchange
from tf_onebit.training.gradients import GradientExchange
from tf_onebit.training.optimizer import Distributed, GlobalLossScale, settings, subclass


def adopt_caller():
    """Makes the Keras optimizer that is creating a variable, if one is, exchange its gradients.

    Keras has no place to register for that. But the name scopes it opens tell who opened them,
    and every optimizer starts by creating a counter of its iterations.
    """
    scopes = global_state.get_global_attribute("name_scope_stack")
    optimizer = scopes[-1].caller if scopes else None
    if isinstance(optimizer, keras.optimizers.Optimizer) and not is_adopted(optimizer):
        scales_loss = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        mixin = _LossScaleUnderStrategy if scales_loss else _UnderStrategy
        optimizer.__class__ = subclass(type(optimizer), mixin)


def is_adopted(optimizer):
    """Whether a Keras optimizer was made in the scope of a strategy of this package."""
    return isinstance(optimizer, (Distributed, GlobalLossScale))


class _UnderStrategy(Distributed):
    """Exchanges gradients through the strategy in whose scope it was made."""

    @functools.cached_property
    def gradient_exchange(self):
        strategy = self._distribution_strategy
        # Keras has scaled the loss by the number of replicas: the sum of gradients is their mean.
        return GradientExchange(
            strategy.exchange, strategy.extended.engine, mean=False, settings=settings(self)
        )

    @property
    def replica_context(self):
        """The replica context of the strategy, in which an optimizer must be used."""
        context = tf.distribute.get_replica_context()
        if context is None or context.strategy is not self._distribution_strategy:
            raise ValueError(
                f"The optimizer {self.name!r} was made in the scope of a "
                f"{type(self._distribution_strategy).__name__}, but is used outside of its "
                "replicas. Make model and optimizer in the same `with strategy.scope():`, and "
                "train by model.fit or within strategy.run."
            )
        return context

    def _exchange(self, gradients, variables):
        if not variables:
            return []
        return exchange(self.replica_context, self.gradient_exchange, gradients, variables)

    def _all_reduce_sum_gradients(self, grads_and_vars):
        return list(grads_and_vars)  # `_clip_gradients` has done it

    def _backend_apply_gradients(self, grads, trainable_variables):
        context = self.replica_context
        steps = self.gradient_accumulation_steps
        if not steps or len(context.strategy.extended.worker_devices) == 1:
            super()._backend_apply_gradients(grads, trainable_variables)
            return
        # Keras decides on each replica whether this step updates, and a replica cannot meet the
        # others in a branch. So all of them decide together, and then go on apart.
        accumulators = [
            self._accumulated_gradients[self._get_variable_index(v)] for v in trainable_variables
        ]

        def update(grads):
            means = [(g + a) / steps for g, a in zip(grads, accumulators, strict=True)]
            self._apply_at_once(means, trainable_variables)
            self._backend_reset_gradient_accumulators()

        def accumulate(grads):
            self._backend_increment_gradient_accumulators(grads, accumulators)
            self._apply_at_once([], [])  # moving averages of the weights go on

        def merged(strategy, grads):
            def replicas(function):
                return lambda: strategy.extended.call_for_each_replica(function, (grads,))

            tf.cond((self.iterations + 1) % steps == 0, replicas(update), replicas(accumulate))

        context.merge_call(merged, (list(grads),))

    def _apply_at_once(self, gradients, variables):
        steps, self.gradient_accumulation_steps = self.gradient_accumulation_steps, None
        super()._backend_apply_gradients(gradients, variables)
        self.gradient_accumulation_steps = steps


class _LossScaleUnderStrategy(GlobalLossScale):
    @property
    def gradient_exchange(self):
        return self.inner_optimizer.gradient_exchange

    def check_finite(self, grads):
        return all_finite(self.inner_optimizer.replica_context, self.gradient_exchange, grads)
