"""Fragments of a model: parts of its weights, each with a block filter of its own."""

import itertools

import numpy as np
import tensorflow as tf

from tf_onebit._bmuf.equations import Block


class Fragment:
    """Consecutive weights that synchronize together, and the state of their block filter.

    Args:
        places: slice of the weights.
        averages: whether variables that are averaged as they are synchronize with this fragment.
        exchanges: `BlockExchanges` of these weights.
        engine: `Engine` of the workers.
        replicas: list of `BlockReplica`, by worker of this process.
        optimizers: number of optimizers.

    Attributes:
        equivalent_steps: rho_n, by optimizer.
        look_ahead_eta: the eta of the look-ahead that the fragment's block began with.
        blocks: number of blocks that have been synchronized.
    """

    def __init__(self, places, averages, exchanges, engine, replicas, optimizers):
        self.places, self.averages, self.exchanges = places, averages, exchanges
        self._engine, self._replicas = engine, replicas
        self._shape = optimizers, engine.world_size
        self.blocks = 0
        self.synchronize = tf.function(self._synchronize, autograph=False)
        self._find_changes = tf.function(self._changes_since, autograph=False)
        self.update_late = tf.function(self._update_late, autograph=False)
        self._exchange = tf.function(self._exchange_changes, autograph=False)
        self.restart()

    def _synchronize(self, factors):
        self._engine.run(
            replica.synchronize(mine, self, factors)
            for replica, mine in zip(self._replicas, self._built, strict=True)
        )

    @property
    def _built(self):
        return self.exchanges.of_workers(len(self._replicas))

    def changes(self):
        """Returns the changes of the weights, and the averaged values: pairs, by worker."""
        return self._find_changes(tf.constant(self.look_ahead_eta, tf.float64))

    def _changes_since(self, look_ahead):
        return [(one.changes(self, look_ahead), one.averages_of(self)) for one in self._replicas]

    def traced_exchange(self, changes):
        """Returns a function of the workers' weights that exchanges what `changes` has returned.

        It makes no graph, so that any thread can call it.
        """
        weights = tf.TensorSpec([self._engine.world_size], tf.float64)
        exchange = self._exchange.get_concrete_function(changes, weights)
        return lambda weights: exchange(changes, tf.constant(weights, tf.float64))

    def _exchange_changes(self, changes, weights):
        return self._engine.run(
            replica.exchange(exchange, *mine, weights[replica.rank])
            for replica, (exchange,), mine in zip(self._replicas, self._built, changes, strict=True)
        )

    def _update_late(self, results, changes, factors):
        for replica, (means, averages), (own, _) in zip(
            self._replicas, results, changes, strict=True
        ):
            replica.update_late(self, means, averages, own, factors)

    def restart(self):
        """Begins a block without block momentum."""
        self.equivalent_steps, self.look_ahead_eta = [0.0] * self._shape[0], 0.0
        self.begin_block()

    def begin_block(self):
        self._steps = np.zeros(self._shape, np.int64)  # since the block began

    @property
    def has_steps(self):
        """True if a worker has made a step since the block began."""
        return self._steps.any()

    def count(self, by_optimizer):
        """Counts steps: a list for each optimizer, by worker."""
        self._steps = self._steps + by_optimizer

    def block(self, leads):
        """Returns the `Block` that ends now, and that of each optimizer.

        Args:
            leads: whether the first worker with a step is the only one that counts.
        """
        return _blocks(self._steps, leads)

    def weights_after(self, by_optimizer, leads):
        """Returns the workers' weights after more steps, or None if there were none at all.

        Args:
            by_optimizer, leads: see `count` and `block`.
        """
        steps = self._steps + by_optimizer
        return _blocks(steps, leads)[0].weights if steps.any() else None

    def move_on(self, block_filter, equivalent_steps):
        """Begins the next block, after a `BlockFilter` has changed the model."""
        self.equivalent_steps = list(equivalent_steps)
        self.look_ahead_eta = block_filter.block_momentum if block_filter.nesterov else 0.0
        self.blocks += 1
        self.begin_block()

    def state(self):
        """Returns the filter's state: dictionary of NumPy arrays."""
        return {
            "filter": np.array([*self.equivalent_steps, self.look_ahead_eta], np.float64),
            "steps": self._steps,
        }

    def load_state(self, state):
        """Loads what `state` returned, perhaps with another number of workers."""
        *self.equivalent_steps, self.look_ahead_eta = state["filter"].tolist()
        steps = state["steps"]
        if steps.shape != self._shape:  # all go on from the mean, as if all had made as many steps
            mean = np.ceil(steps.mean(axis=1, keepdims=True)).astype(np.int64)
            steps = np.repeat(mean, self._shape[1], axis=1)
        self._steps = steps


def _blocks(steps, leads):
    # The optimizer with the most steps determines the steps of a worker.
    of_worker = tuple(steps.max(axis=0).tolist())
    leader = next((rank for rank, count in enumerate(of_worker) if count), 0) if leads else None
    block = Block(of_worker, leader)
    return block, [block.of_optimizer(its_steps) for its_steps in steps.tolist()]


def divide(weights, count):
    """Divides weights into consecutive parts of about equal size: list of slices.

    The weights of a layer stay together.

    Args:
        weights: list of variables.
        count: number of parts.

    Raises:
        ValueError: for more parts than layers.
    """
    sizes = [int(np.prod(weight.shape)) for weight in weights]
    layers = [path.rpartition("/")[0] for path in (weight.path for weight in weights)]
    ends = [i for i in range(1, len(weights)) if layers[i] != layers[i - 1]] + [len(weights)]
    if count > len(ends):
        raise ValueError(
            "Each fragment has at least one layer with weights. Received: "
            f"fragments={count} for a model of {len(ends)} such layers. Use "
            f"fragments={len(ends)} or fewer."
        )
    sums = np.cumsum(sizes)[np.array(ends) - 1]
    chosen, first = [], 0
    for part in range(1, count):
        last = len(ends) - (count - part)  # the others need a layer each
        distances = np.abs(sums[first:last] - sums[-1] * part / count)
        first += int(np.argmin(distances)) + 1
        chosen.append(ends[first - 1])
    return list(itertools.starmap(slice, itertools.pairwise([0, *chosen, len(weights)])))
