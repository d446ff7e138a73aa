"""What a model's training goes on from, kept in memory to come back to."""

import numpy as np

from tf_onebit.callbacks import training_state
from tf_onebit.framework_internals.keras_optimizers import learning_rate_setting_of
from tf_onebit.training.model_optimizers import (
    batch_size_dependents,
    gradient_exchanges_of,
    inner_optimizer,
    optimizers_of,
)


def can_be_taken(model):
    """Whether all is there that a snapshot of a model is to keep: if not, after the first step.

    So it is of a model that is not built, and of a backup by another number of workers, whose
    states the exchanges share out in their first step. An optimizer that the model was compiled
    with is built.
    """
    exchanges = gradient_exchanges_of(model)
    if not model.built or not all(exchange.carried.is_whole for exchange in exchanges):
        return False
    if model.optimizer is not None and not model.optimizer.built:
        with model.distribute_strategy.scope():
            model.optimizer.build(model.trainable_variables)
    return all(optimizer.built for optimizer in optimizers_of(model))


class Snapshot:
    """The state of a training, as this process has it between two steps.

    Of the model, its metrics, optimizers and their exchanges, and of the generators of random
    numbers. All workers take it, and go back to it, together.

    Args:
        state: dictionary of NumPy arrays.
        random_state: string.
    """

    def __init__(self, state, random_state):
        self.state = state
        self._random_state = random_state

    @classmethod
    def of(cls, model, occasion):
        """The snapshot of a model's training as it is.

        Args:
            model: Keras model, of which one `can_be_taken`.
            occasion: at which all workers take it, in a few words.
        """
        state = training_state.collect(model, occasion)
        # Copies: what NumPy shows of a variable may be its own memory.
        copies = {name: np.array(array) for name, array in state.items()}
        return cls(copies, training_state.random_state())

    def restore(self, model):
        """Brings a training back to what it was, to the last bit."""
        model.reset_metrics()  # those that came later
        training_state.assign_variables(model, self.state)
        training_state.load_exchanges(model, [self.state])
        training_state.set_random_state(model, self._random_state)

    def restore_learned(self, model):
        """Brings back what a model has learned: its weights, optimizers' state, exchanges.

        Not its metrics, learning rates, minibatch size and generators of random numbers: they go
        on.
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
