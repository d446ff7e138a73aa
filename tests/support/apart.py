"""The reference for exchanged updates: one process, with a plain optimizer for each worker."""

import keras
import numpy as np
import tensorflow as tf

from tests.support.adam_of_means import of_means
from tests.support.training import built, make_data, make_model, sparse_gradients_of


class Apart:
    """Adds the mean of what each worker's optimizer would do with that worker's gradients.

    All optimizers get the mean of sparse gradients. With delay they get their own: for updates that
    are linear in the gradient this is the same.

    Args:
        optimizer: function that makes it.
        world_size: number of workers.
        make: function that makes the model.
        delay: number of updates by which means are added late.
    """

    def __init__(self, optimizer, world_size, make=make_model, delay=0):
        self.model, self.delay = built(make), delay
        self._optimizers = [of_means(optimizer(), world_size) for _ in range(world_size)]
        self._own = [
            [keras.Variable(v.numpy(), name=v.name) for v in self.model.trainable_variables]
            for _ in range(world_size)
        ]
        self._queue, self._steps = [], 0

    def step(self, batches):
        """Takes one batch of each worker."""
        weights = self.model.trainable_variables
        updates = []
        gradients = [sparse_gradients_of(self.model, *batch) for batch in batches]
        for i, slices in enumerate(zip(*gradients, strict=True)):
            if isinstance(slices[0], tf.IndexedSlices) and not self.delay:
                mean = tf.add_n(list(map(tf.convert_to_tensor, slices))) / len(batches)
                for mine, optimizer in zip(gradients, self._optimizers, strict=True):
                    mine[i] = mean
                    optimizer.exchanged = {*getattr(optimizer, "exchanged", ()), i}
        for optimizer, own, mine in zip(self._optimizers, self._own, gradients, strict=True):
            before = [v.numpy() for v in weights]
            for variable, value in zip(own, before, strict=True):
                variable.assign(value)
            optimizer.apply(mine, own)
            updates.append([v.numpy() - b for v, b in zip(own, before, strict=True)])
        self._steps += 1
        if self._steps % (self._optimizers[0].gradient_accumulation_steps or 1):
            return
        self._queue.append([np.mean(u, axis=0) for u in zip(*updates, strict=True)])
        if len(self._queue) > self.delay:
            self._add_oldest()

    def _add_oldest(self):
        for variable, update in zip(
            self.model.trainable_variables, self._queue.pop(0), strict=True
        ):
            variable.assign_add(update)

    def fit(self, steps, epochs=1):
        """Trains on the batches of `make_data`, and returns the weights."""
        world_size = len(self._optimizers)
        x, labels = make_data(steps, world_size)
        for _ in range(epochs):
            for step in range(steps):
                self.step([(x[step, rank], labels[step, rank]) for rank in range(world_size)])
            while self._queue:
                self._add_oldest()
        return self.model.get_weights()
