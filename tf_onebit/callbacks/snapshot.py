"""Snapshots of a training, kept in memory."""

import numpy as np

from tf_onebit._framework_internals.keras_optimizers import learning_rate_setting_of
from tf_onebit._training.model_optimizers import (
    batch_size_dependents,
    gradient_exchanges_of,
    inner_optimizer,
    optimizers_of,
)
from tf_onebit.callbacks import training_state


def can_be_taken(model):
    """Tells whether a snapshot of a model can be taken now. If not, it can after the first step.

    It cannot if the model is not built. Nor can it after a resume with another number of workers:
    exchanges divide the states in their first step. This function builds the optimizer that the
    model was compiled with.
    """
    exchanges = gradient_exchanges_of(model)
    if not model.built or not all(exchange.carried.is_whole for exchange in exchanges):
        return False
    if model.optimizer is not None and not model.optimizer.built:
        with model.distribute_strategy.scope():
            model.optimizer.build(model.trainable_variables)
    return all(optimizer.built for optimizer in optimizers_of(model))


class Snapshot:
    """The state of a training in this process, between two steps.

    It contains the state of the model, its metrics, optimizers and their exchanges, and of the
    random generators. All workers take and restore it together.

    Args:
        state: dictionary of NumPy arrays.
        random_state: string.
    """

    def __init__(self, state, random_state):
        self.state = state
        self._random_state = random_state

    @classmethod
    def of(cls, model, occasion):
        """Takes a snapshot of a model's training.

        Args:
            model: Keras model for which `can_be_taken` holds.
            occasion: a few words for the occasion at which all workers take it.
        """
        state = training_state.collect(model, occasion)
        # The arrays are copied, because they may share the variables' memory.
        copies = {name: np.array(array) for name, array in state.items()}
        return cls(copies, training_state.random_state())

    def restore(self, model):
        """Restores the training to the last bit."""
        model.reset_metrics()  # also those that were made later
        training_state.assign_variables(model, self.state)
        training_state.load_exchanges(model, [self.state])
        training_state.set_random_state(model, self._random_state)

    def restore_learned(self, model):
        """Restores what a model has learned: its weights, optimizers and exchanges.

        Metrics, learning rates, minibatch size and random generators keep their current state.
        """
        going_on = {id(v) for v in model.metrics_variables}
        weights = {id(v) for v in model.weights}  # without the states of generators
        going_on |= {id(v) for v in model.variables if id(v) not in weights}
        optimizers = optimizers_of(model)
        going_on |= {id(learning_rate_setting_of(inner_optimizer(o))) for o in optimizers}
        sizes = [(owner, owner.global_batch_size) for owner, _ in batch_size_dependents(model)]
        training_state.assign_variables(model, self.state, except_for=going_on)
        training_state.load_exchanges(model, [self.state])
        for owner, size in sizes:
            if size is not None:
                owner.set_global_batch_size(size)
