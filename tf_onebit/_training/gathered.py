"""Gathered: what workers have received of each other, and what is left to be done with it."""

import tensorflow as tf

from tf_onebit._framework_internals.tf_variables import copies_by_device


class Gathered:
    """Result of an exchange, of which most is not decoded yet.

    Args:
        gradient_exchange: `GradientExchange`.
        exchanges: list of `Bucketed`, one for each worker of this process.
        results: list of what they gathered.
        variables: list of variables.

    Attributes:
        exchanged: list of lists of gradients, one for each worker. An empty tensor stands for a
            gradient that `add` adds. It is ready when the exchange has succeeded.
    """

    def __init__(self, gradient_exchange, exchanges, results, variables):
        self._gradient_exchange = gradient_exchange
        self._exchanges, self._results = exchanges, results
        self._variables = variables
        self.exchanged = []
        for exchange, result in zip(exchanges, results, strict=True):
            with tf.control_dependencies(tf.nest.flatten(result, expand_composites=True)):
                succeeded = tf.zeros([0])
            gradients = exchange.gradients_of(result)
            self._added = {id(v) for v, g in zip(variables, gradients, strict=True) if g is None}
            self.exchanged.append([succeeded if g is None else g for g in gradients])

    def left_of(self, gradients, variables):
        """Returns the gradients that `add` does not add, and their variables: two lists.

        Args:
            gradients: an entry of `exchanged`.
            variables: list of their variables.
        """
        left = [
            (gradient, variable)
            for gradient, variable in zip(gradients, variables, strict=True)
            if id(variable) not in self._added
        ]
        return [gradient for gradient, _ in left], [variable for _, variable in left]

    def add(self, factors):
        """Adds multiples of exchanged gradients to variables, where exchanges can do so.

        Args:
            factors: list of float32 scalars, one for each device of this process.
        """
        workers, scale = self._gradient_exchange.workers, self._gradient_exchange.scale
        copies = copies_by_device(self._variables)
        for worker, (own, result) in enumerate(zip(self._exchanges, self._results, strict=True)):
            devices = [workers.of_worker(worker, by_device) for by_device in (copies, factors)]
            for variables, factor in zip(*devices, strict=True):
                own.add_to(variables, result, scale, factor)
