"""BlockExchanges: the exchanges of what a block has changed."""

import dataclasses
import math

from tf_onebit._training.gradient_exchange import GradientExchange
from tf_onebit.exchanges import GradientSpec
from tf_onebit.exchanges.state import part_of, prefixed, summed


class BlockExchanges:
    """Exchanges of the changes of a block: of weights, and of each of the moments.

    Args:
        templates: list of the user's exchanges: for the weights, and for each of the moments.
        weights: list of a worker's weights.
        moments: list of `tf_onebit.optimizers.Moment`.
        engine: `Engine` of the workers.
        model_group: `Group` of processes or devices that are one worker, or None.
    """

    def __init__(self, templates, weights, moments, engine, model_group):
        # Moments go by name, not path: a path has a number that depends on the rest of a program.
        self._lists = [(weights, [v.path for v in weights])]
        for moment in moments:
            self._lists.append((moment.variables, [v.name for v in moment.variables]))
        job = engine if model_group is None else model_group.job
        unit = 1.0 / engine.world_size  # workers send their parts of the mean
        self._exchanges = []  # empty for a single worker
        for template in templates if engine.world_size > 1 else ():
            exchange = GradientExchange(template, job, False, unit=unit)
            if model_group is not None:
                exchange.workers.follow(model_group)
            self._exchanges.append(exchange)

    def of_workers(self, count):
        """Returns the exchanges of each of `count` workers: lists of `Bucketed`, or of None."""
        if not self._exchanges:
            return [[None] * len(self._lists)] * count
        pairs = zip(self._exchanges, self._lists, strict=True)
        return list(zip(*(_built(exchange, *own) for exchange, own in pairs), strict=True))

    @property
    def _first(self):
        return [built for exchange in self._exchanges for built in exchange.built]

    @property
    def size(self):
        """Number of values of the weights."""
        weights, _ = self._lists[0]
        return sum(math.prod(weight.shape) for weight in weights)

    def bytes_sent(self):
        """Returns the bytes that a worker sends in a block: int."""
        return sum(built.bytes_sent() for built in self._first)

    def residual_sum_of_squares(self):
        """Returns the sum of squares of the first worker's residuals in this process."""
        return sum(built.residual_sum_of_squares() for built in self._first)

    def residual_squares(self):
        """Returns the sums of squares by name of what has a residual: dictionary of floats."""
        return summed(built.residual_squares() for built in self._first)

    def metrics(self):
        """Returns the metrics of the last exchange, for the Monitor: dictionary of floats."""
        return {name: value for built in self._first for name, value in built.metrics().items()}

    def states(self, count):
        """Returns the states of this process's `count` workers: list of dictionaries."""
        states = [{} for _ in range(count)]
        for i, exchange in enumerate(self._exchanges):
            for built in exchange.carried.states():
                for state, one in zip(states, built, strict=True):
                    state |= prefixed(f"exchange_{i}", one)
        return states

    def load_states(self, states):
        """Loads the states of an earlier run.

        Args:
            states: list of what `states` returned, by worker of that job.
        """
        for i, exchange in enumerate(self._exchanges):
            parts = [part_of(state, f"exchange_{i}") for state in states]
            if any(parts):
                exchange.load_states([parts], 1.0)


def _built(exchange, variables, names):
    specs = tuple(
        dataclasses.replace(GradientSpec.of(variable, variable), name=name)
        for variable, name in zip(variables, names, strict=True)
    )
    return exchange.exchanges.of(specs, variables)
