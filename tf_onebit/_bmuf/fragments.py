"""Fragments of a model: parts of its weights, each with a block filter of its own."""

import itertools

import numpy as np
import tensorflow as tf

from tf_onebit._bmuf.equations import Block
from tf_onebit._bmuf.exchanges import BlockExchanges
from tf_onebit._bmuf.outer_optimizer import OuterOptimizer
from tf_onebit.exchanges.state import part_of, prefixed


class Fragment:
    """Consecutive weights that synchronize together, and the state of their block filter.

    Args:
        places: slice of the weights.
        averages: whether variables that are averaged as they are synchronize with this fragment.
        exchanges: `BlockExchanges` of these weights.
        engine: `Engine` of the workers.
        replicas: list of `BlockReplica`, by worker of this process.
        optimizers: number of optimizers.
        nominal_steps: number of steps of a block, for workers that do not wait for each other's
            numbers. They send `steps / (nominal_steps * world_size)` times their changes, and
            correct the sum when they know all numbers. None for workers that wait.
        outer: list of `OuterOptimizer`, by replica, or of None.

    Attributes:
        equivalent_steps: rho_n, by optimizer.
        look_ahead_eta: the eta of the look-ahead that the fragment's block began with.
        blocks: number of blocks that have been synchronized.
    """

    def __init__(
        self, places, averages, exchanges, engine, replicas, optimizers, nominal_steps, outer
    ):
        self.places, self.averages, self.exchanges = places, averages, exchanges
        self._engine, self._replicas = engine, replicas
        self._shape = optimizers, engine.world_size
        self._nominal_steps, self._outer = nominal_steps, outer
        self.blocks = 0
        self.synchronize = tf.function(self._synchronize, autograph=False)
        self._find_changes = tf.function(self._changes_since, autograph=False)
        self.update_late = tf.function(self._update_late, autograph=False)
        self._exchange = tf.function(self._exchange_changes, autograph=False)
        self.restart()

    def _synchronize(self, factors, warms_up):
        outer = [None] * len(self._outer) if warms_up else self._outer
        self._engine.run(
            replica.synchronize(mine, self, factors, its_outer)
            for replica, mine, its_outer in zip(self._replicas, self._built, outer, strict=True)
        )

    @property
    def _built(self):
        return self.exchanges.of_workers(len(self._replicas))

    def changes(self):
        """Finds what workers send before they know each other's steps.

        Returns:
            By worker of this process, the scaled changes of its weights, the scaled values that are
            averaged, and the scale.
        """
        steps = [self._steps[:, one.rank] + one.steps for one in self._replicas]
        scales = [self._scale(count.max()) for count in steps]
        look_ahead = tf.constant(self.look_ahead_eta, tf.float64)
        return self._find_changes(tf.constant(scales, tf.float64), look_ahead)

    def _changes_since(self, scales, look_ahead):
        return [
            (*replica.changes(self, scale, look_ahead), scale)
            for replica, scale in zip(
                self._replicas, tf.unstack(scales, len(self._replicas)), strict=True
            )
        ]

    def traced_exchange(self, changes):
        """Returns a function that exchanges what `changes` has returned, and makes no graph.

        Any thread can call it. It returns the sums of the changes, and of the averaged values, by
        worker of this process.
        """
        exchange = self._exchange.get_concrete_function(changes)
        return lambda: exchange(changes)

    def _exchange_changes(self, changes):
        return self._engine.run(
            replica.exchange(exchange, own, averages)
            for replica, (exchange,), (own, averages, _) in zip(
                self._replicas, self._built, changes, strict=True
            )
        )

    def _update_late(self, sums, changes, factors):
        for replica, received, own, outer in zip(
            self._replicas, sums, changes, self._outer, strict=True
        ):
            replica.update_late(self, *received, *own, factors, outer)

    def weights(self, block):
        """Returns the factors of what workers send, by worker, and the factor of their sum.

        If none has made a step, the factors are 0. Then only residuals are sent.
        """
        if self._nominal_steps is None or block.leader is not None or self._shape[1] == 1:
            return block.weights, 1.0
        steps = self._steps.max(axis=0)
        total = self._scale(steps.sum())
        return tuple(map(self._scale, steps)), 1 / total if total else 1.0

    def _scale(self, steps):
        """Returns the factor of the change that a worker has made in some steps."""
        workers = self._shape[1]
        return 1.0 if workers == 1 else float(steps) / (self._nominal_steps * workers)

    @property
    def scales_changes(self):
        """True if workers scale what they send by their own steps, and correct the sum."""
        return self._nominal_steps is not None

    def restart(self):
        """Begins a block without block momentum, and with a new outer optimizer."""
        for outer in self._outer:
            if outer is not None:
                outer.restart()
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
        # All count if none has made a step, for example with a loss scale that is too large.
        steps = self._steps if self.has_steps else np.ones(self._shape, np.int64)
        # The optimizer with the most steps determines the steps of a worker.
        of_worker = tuple(steps.max(axis=0).tolist())
        leader = next((rank for rank, count in enumerate(of_worker) if count), 0) if leads else None
        block = Block(of_worker, leader)
        return block, [block.of_optimizer(its_steps) for its_steps in steps.tolist()]

    def move_on(self, block_filter, equivalent_steps):
        """Begins the next block, after a `BlockFilter` has changed the model."""
        self.equivalent_steps = list(equivalent_steps)
        self.look_ahead_eta = block_filter.block_momentum if block_filter.nesterov else 0.0
        self.blocks += 1
        self.begin_block()

    def state(self):
        """Returns the state of filter and outer optimizer: dictionary of NumPy arrays."""
        return {
            "filter": np.array([*self.equivalent_steps, self.look_ahead_eta], np.float64),
            "steps": self._steps,
            **prefixed("outer", self._outer_state()),
        }

    def _outer_state(self):
        return {} if self._outer[0] is None else self._outer[0].state()

    def load_state(self, state):
        """Loads what `state` returned, perhaps with another number of workers.

        Raises:
            ValueError: for the state of another outer optimizer.
        """
        saved, expected = part_of(state, "outer"), self._outer_state()
        shapes, expected = ([array.shape for array in one.values()] for one in (saved, expected))
        if shapes != expected:
            raise ValueError(
                "A resumed run must use the same BlockMomentum as before. Received: a state of "
                f"{len(shapes)} variables of an outer_optimizer. Expected: {len(expected)}, of the "
                "same shapes. Use the earlier outer_optimizer, or begin again from the model's "
                "weights."
            )
        for outer in self._outer:
            if outer is not None:
                outer.load_state(saved)
        *self.equivalent_steps, self.look_ahead_eta = state["filter"].tolist()
        steps = state["steps"]
        if steps.shape != self._shape:  # all go on from the mean, as if all had made as many steps
            mean = np.ceil(steps.mean(axis=1, keepdims=True)).astype(np.int64)
            steps = np.repeat(mean, self._shape[1], axis=1)
        self._steps = steps


def fragments_of(
    variables, count, templates, engine, model_group, replicas, nominal_steps, outer_optimizer
):
    """Divides a model: returns a list of `Fragment`.

    Args:
        variables: `BlockVariables` of a worker.
        count: number of fragments.
        templates, model_group: see `BlockExchanges`.
        engine, replicas, nominal_steps: see `Fragment`.
        outer_optimizer: Keras optimizer, or None.
    """
    parts = divide(variables.weights, count)
    fragments = []
    for places in parts:
        weights = variables.weights[places]
        exchanges = BlockExchanges(templates, weights, variables.moments, engine, model_group)
        outer = [None] * len(replicas)
        if outer_optimizer is not None:
            for i, replica in enumerate(replicas):
                with engine.place(i):
                    outer[i] = OuterOptimizer(outer_optimizer, weights)
                replica.take_deltas(places, outer[i].scratch)
        fragments.append(
            Fragment(
                places,
                places is parts[-1],
                exchanges,
                engine,
                replicas,
                len(variables.optimizers),
                nominal_steps,
                outer,
            )
        )
    return fragments


def end_of_turn(turn, sync_period, fragments):
    """Returns the number of steps of a block after which the turn of a fragment ends: int."""
    return (turn + 1) * sync_period // fragments


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
