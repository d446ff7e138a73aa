"""The reference for delayed gradients: one process with a queue."""

import numpy as np

from tests.support.training import INPUTS, built, gradients_of, make_data, make_model


class Late:
    """Training that applies the gradients of all workers' batches some steps late.

    Args:
        optimizer: function that makes it.
        make: function that makes the model.
        delay: number of steps.
    """

    def __init__(self, optimizer, make=make_model, delay=1):
        self.model, self.optimizer, self.delay = built(make), optimizer(), delay
        self.optimizer.build(self.model.trainable_variables)
        self._queue = []

    def step(self, *batches):
        """Computes the mean gradient of some batches, and applies the oldest one in the queue."""
        gradients = [gradients_of(self.model, *batch) for batch in batches]
        self._queue.append([sum(g) / len(batches) for g in zip(*gradients, strict=True)])
        if len(self._queue) > self.delay:
            self._apply_oldest()

    def _apply_oldest(self):
        self.optimizer.apply(self._queue.pop(0), self.model.trainable_variables)

    def flush(self):
        while self._queue:
            self._apply_oldest()

    def fit(self, batches, epochs=1):
        for _ in range(epochs):
            for batch in batches:
                self.step(batch)
            self.flush()
        self.optimizer.finalize_variable_values(self.model.trainable_variables)
        return self.arrays

    @property
    def arrays(self):
        """The weights, and the state of the optimizer."""
        return arrays_of(self.model, self.optimizer)


def whole_batches(steps, world_size):
    """Returns the batches of all workers together."""
    x, labels = make_data(steps, world_size)
    return list(zip(x.reshape(steps, -1, INPUTS), labels.reshape(steps, -1), strict=True))


def arrays_of(model, optimizer):
    return [np.array(v) for v in (*model.variables, *optimizer.variables)]


def assert_like(model, arrays):
    """Asserts that a model has these weights and optimizer state, to rounding.

    Args:
        model: Keras model.
        arrays: `Late.arrays`.
    """
    mine = arrays_of(model, getattr(model.optimizer, "inner_optimizer", model.optimizer))
    for array, other in zip(mine, arrays, strict=True):
        np.testing.assert_allclose(array, other, rtol=1e-5, atol=1e-5)
