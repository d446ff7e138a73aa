"""Block synchronization: averages of models that workers train apart, once per block."""

import collections
import contextlib
import dataclasses
import enum
import re
import time

import numpy as np
import tensorflow as tf

from tf_onebit._bmuf.equations import Block, BlockFilter
from tf_onebit._bmuf.factors import block_factors
from tf_onebit._bmuf.replica import BlockReplica, mean_of_copies
from tf_onebit._framework_internals.tf_variables import assign_all
from tf_onebit._training.gradient_exchange import GradientExchange
from tf_onebit.collectives.requests import AllReduce, one_request
from tf_onebit.exchanges import FullPrecision, GradientSpec
from tf_onebit.exchanges.state import part_of, summed

# The worker whose steps alone count while the model is warmed up.
_LEADER = 0
# Exchanges report a gradient; here it is the change of a block.
_NOT_FINITE = r"(All ranks|Rank \d+) met .* gradient of \W*([^'\\]+)"


class End(enum.IntEnum):
    """The end that a worker has reached when it meets the others."""

    BLOCK = 0
    EPOCH = 1
    TRAINING = 2


class BlockSynchronization:
    """Synchronization of the models of workers that train apart (Chen, Ding, Huo 2020).

    During a block a worker's model starts from the look-ahead and is trained locally. In a `view`,
    and between epochs, models hold the global model.

    Args:
        engine: `Engine` of the workers, or of the groups if there are any.
        block_filter: `BlockFilter`.
        template: the user's exchange for the changes of a block.
        variables: list of `BlockVariables`, one for each of `engine.ranks`.
        corrects_moments: whether moments are moved to match the look-ahead, unless workers keep
            them. Otherwise they are averaged.
        warmup_steps: number of initial steps in which worker 0 alone counts.
        scope: prefix of the names of collectives.
        within: `Engine` of this worker's group, or None.
        template_of: function from a `Moment` to its exchange. Default: all in full precision.

    Attributes:
        equivalent_steps: rho_n, by optimizer.
        batches: number of this process's batches in the block. The caller counts them.
        latest: begins and ends of the latest synchronizations, in nanoseconds of
            `time.monotonic_ns`. They include waiting for the others.
    """

    def __init__(
        self,
        engine,
        block_filter,
        template,
        variables,
        corrects_moments=True,
        warmup_steps=0,
        scope="tf_onebit_blocks",
        within=None,
        template_of=None,
    ):
        self.engine = engine
        self._filter = block_filter
        self._warmup_left = warmup_steps
        self._scope = scope
        self._within = within
        self._moments = variables[0].moments
        self._replicas = []
        for index, (rank, mine) in enumerate(zip(engine.ranks, variables, strict=True)):
            with engine.place(index):
                replica = BlockReplica(rank, scope, mine, block_filter.nesterov)
            self._replicas.append(replica)
        self._weights = variables[0].weights
        template_of = template_of or (lambda moment: FullPrecision())
        templates = [template, *map(template_of, self._moments)]
        self._optimizers = variables[0].optimizers
        self._corrects_moments = corrects_moments
        if engine.world_size == 1:
            templates = [None] * len(templates)
        unit = 1.0 / engine.world_size  # workers send their parts of the mean
        self._exchanges = [t and GradientExchange(t, engine, False, unit=unit) for t in templates]
        self._synchronize = tf.function(self._synchronize_all, autograph=False)
        self.equivalent_steps, self._look_ahead_eta = [0.0] * len(self._optimizers), 0.0
        self._restarts = 0
        self._has_model = self._begun = self._shown = self._ended = False
        self._blocks = self._steps = 0  # numbers of synchronized blocks, and of their steps
        self.batches = 0
        self.latest = collections.deque(maxlen=100)

    @property
    def trained_by(self):
        """List of the Keras optimizers of this process's first worker."""
        return self._replicas[0].variables.trained_by

    def begin(self):
        """Begins a training. All workers call it first."""
        self._begun = False
        if self._has_model:  # the training before may have been interrupted
            self.show()

    def begin_epoch(self):
        self._ended = False

    def train(self):
        """Puts the look-ahead into the models, for training to go on.

        When training begins, all workers take worker 0's model, unless all still hold the earlier
        global model. If weights were assigned between epochs, training restarts from them.
        """
        self._ended = False
        if not self._begun:
            self._begun = True
            is_new = not self._has_model or any(r.is_changed for r in self._replicas)
            rows, *_ = self.engine.run(
                replica.gather_status([is_new]) for replica in self._replicas
            )
            if rows.any():
                self.engine.run(replica.broadcast_from(_LEADER) for replica in self._replicas)
                self._restart()
                self._restarts = 0
        if self._shown and any(replica.is_changed for replica in self._replicas):
            for replica in self._replicas:
                replica.restart()
            self._restart()
            self._restarts += 1
        self._hide()

    def _hide(self):
        if self._shown:
            self._shown = False
            for replica in self._replicas:
                replica.hide()

    def _restart(self):
        self.equivalent_steps, self._look_ahead_eta = [0.0] * len(self._optimizers), 0.0
        self._has_model, self._shown = True, False

    def synchronize(self, end=End.BLOCK):
        """Ends a block. A worker may have made no steps in it.

        Args:
            end: `End`: what has ended on this worker.

        Returns:
            `End`: what has ended on all workers.

        Raises:
            ValueError: on all workers, if weights were assigned on some of them only.
            InvalidArgumentError: on all workers, if one has weights that are not finite.
        """
        waits, began = self._ended, time.monotonic_ns()
        if not waits:
            self.train()
        rows, *_ = self.engine.run(
            replica.gather_status([*replica.steps, end, self._restarts])
            for replica in self._replicas
        )
        *by_optimizer, ends, restarts = rows.T.tolist()
        # The optimizer with the most steps determines the steps of a worker.
        steps = tuple(map(max, zip(*by_optimizer, strict=True)))
        if not sum(steps):
            return End(min(ends))
        if len(set(restarts)) > 1:
            raise ValueError(
                "While workers train in blocks, weights must be assigned on all of them or on "
                f"none. Received: weights assigned {restarts} times, by worker."
            )
        if waits:
            self._hide()
        # Worker 0 leads, unless it has no data.
        leader = next(rank for rank, count in enumerate(steps) if count)
        block = Block(steps, leader if self._warmup_left > 0 else None)
        self._end_block(block, list(map(block.of_optimizer, by_optimizer)))
        self.latest.append((began, time.monotonic_ns()))
        return End(min(ends))

    def _end_block(self, block, of_optimizers):
        warms_up = block.leader is not None
        block_filter = self._filter
        if warms_up:
            block_filter = BlockFilter(0.0, 1.0, block_filter.nesterov)
        equivalent_steps, steps_ahead = zip(
            *(
                block_filter.steps(its_block.mean_steps, before)
                for its_block, before in zip(of_optimizers, self.equivalent_steps, strict=True)
            ),
            strict=True,
        )
        steps_ahead = [
            ahead if self._moves_moments(optimizer, its_block) else 0.0
            for ahead, optimizer, its_block in zip(
                steps_ahead, self._optimizers, of_optimizers, strict=True
            )
        ]
        factors = block_factors(
            block,
            block_filter,
            self._look_ahead_eta,
            list(zip(self._optimizers, of_optimizers, steps_ahead, strict=True)),
        )
        self._average_within_group()
        try:
            self._synchronize(factors)
        except tf.errors.InvalidArgumentError as error:
            where = re.search(_NOT_FINITE, error.message)
            if where is None:
                raise
            for replica in self._replicas:
                replica.discard()
            self._restart()
            raise tf.errors.InvalidArgumentError(
                error.node_def,
                error.op,
                f"Weights must be finite after a block. {where[1]} met an infinity or NaN in the "
                f"change of '{where[2]}'. The model keeps the weights from before the block. "
                "Lower the learning rate or clip gradients. Then train on with a new optimizer, "
                "or from a backup.",
            ) from error
        self._blocks, self._steps = self._blocks + 1, self._steps + block.mean_steps
        self.equivalent_steps = list(equivalent_steps)
        self._look_ahead_eta = block_filter.block_momentum if block_filter.nesterov else 0.0
        for replica in self._replicas:
            replica.move_on(of_optimizers, steps_ahead, block_filter.block_momentum)
        if warms_up:
            self._warmup_left -= max(block.counted)
            self.equivalent_steps = [0.0] * len(self._optimizers)
            for replica in self._replicas:
                replica.forget_momentum()
            if self._warmup_left <= 0:
                # All workers take the leader's whole state, and discard their own.
                self.engine.run(replica.broadcast_from(block.leader) for replica in self._replicas)

    def _moves_moments(self, optimizer, block):
        """Tells whether an optimizer's moments are moved to match the look-ahead."""
        # Moments of a single worker are too noisy: the correction multiplies their noise.
        # Without a step in the block their direction is not known.
        return self._corrects_moments and not optimizer.keeps_moments and block.mean_steps > 0

    def _average_within_group(self):
        """Averages statistics within this group, since only one of its workers meets others."""
        if self._within is None or self._within.world_size == 1:
            return
        (replica,) = self._replicas
        averaged = replica.variables.averaged
        if averaged:
            request = AllReduce(
                [mean_of_copies(variable) for variable in averaged],
                f"{self._scope}/within",
                1 / self._within.world_size,
            )
            (averages,) = self._within.run([one_request(request)])
            for variable, average in zip(averaged, averages, strict=True):
                assign_all(variable, average)

    def _synchronize_all(self, factors):
        # Moments go by name, not path: a path has a number that depends on the rest of a program.
        names = [[v.path for v in self._weights]]
        names += [[v.name for v in moment.variables] for moment in self._moments]
        lists = [self._weights, *(moment.variables for moment in self._moments)]
        built = [
            exchange and exchange.exchanges.of(tuple(map(_spec, variables, names)), variables)
            for exchange, variables, names in zip(self._exchanges, lists, names, strict=True)
        ]
        exchanges = [[b and b[i] for b in built] for i in range(len(self._replicas))]
        self.engine.run(
            replica.synchronize(mine, factors)
            for replica, mine in zip(self._replicas, exchanges, strict=True)
        )

    def end(self, end):
        """Ends an epoch or training together with all workers.

        A worker with less data takes part in the others' synchronizations until all have ended.
        Then models hold the global model. Ending an epoch a second time does nothing.

        Args:
            end: `End`.
        """
        if self._ended and end == End.EPOCH:
            return
        while self.synchronize(end) < end:
            pass
        self.show()
        self._ended = True

    def show(self):
        if not self._shown:
            for replica in self._replicas:
                replica.show()
            self._shown = True

    @contextlib.contextmanager
    def view(self):
        """Returns a context in which models hold the global model.

        Not all workers need to enter it.
        """
        shown = self._shown
        if self._has_model:
            self.show()
        try:
            yield
        finally:
            if self._has_model and not shown and not self._ended:
                self.train()

    def bytes_sent(self):
        """Returns the bytes that a worker sends at the end of blocks, per step: float."""
        in_a_block = sum(built.bytes_sent() for built in self._built)
        in_a_block += self._replicas[0].bytes_of_averages(self.engine.world_size)
        return in_a_block * self._blocks / self._steps if self._steps else 0.0

    def residual_sum_of_squares(self):
        """Returns the sum of squares of the first worker's residuals in this process."""
        return sum(built.residual_sum_of_squares() for built in self._built)

    def residual_squares(self):
        """Returns the sums of squares by name of what has a residual: dictionary of floats."""
        return summed(built.residual_squares() for built in self._built)

    @property
    def _built(self):
        return [built for exchange in self._exchanges if exchange for built in exchange.built]

    def states(self):
        """Returns the states of this process's workers: list of dictionaries of NumPy arrays.

        Call it in a `view`. The global model is not in the states, but in the model.
        """
        own = [*self.equivalent_steps, self._look_ahead_eta, self._warmup_left, self.batches]
        own = {"filter": np.array(own, np.float64)}
        states = [replica.state() | own for replica in self._replicas]
        for i, exchange in enumerate(self._exchanges):
            for built in exchange.carried.states() if exchange else ():
                for state, one in zip(states, built, strict=True):
                    state |= {f"exchange_{i}/{name}": array for name, array in one.items()}
        return states

    def load_states(self, states, ranks, as_many):
        """Loads the states of an earlier run. Models must hold its global model.

        Args:
            states: list of what `states` returned, by worker of that job.
            ranks: list of the ranks in the job of this process's workers.
            as_many: whether the number of workers is the same as in the earlier run. If so, each
                takes its own state, and the states of others may be empty. Otherwise all take the
                mean.

        Raises:
            ValueError: for workers in groups, if their number is another.
        """
        if self._within is not None and not as_many:
            raise ValueError(
                "A job with groups of workers can only be resumed with as many workers as "
                f"before. Received: the states of {len(states)} workers."
            )
        mine = [states[rank] for rank in ranks] if as_many else [states[0]] * len(ranks)
        for replica, state in zip(self._replicas, mine, strict=True):
            replica.load_state(state, [state] if as_many else states)
        of_filter = mine[0]["filter"].tolist()
        *self.equivalent_steps, self._look_ahead_eta, self._warmup_left, batches = of_filter
        self.batches = int(batches)
        self._has_model = self._shown = True
        by_rank = states
        if as_many:
            by_rank = [{} for _ in range(self.engine.world_size)]
            for rank, state in zip(self.engine.ranks, mine, strict=True):
                by_rank[rank] = state
        for i, exchange in enumerate(self._exchanges):
            parts = [part_of(state, f"exchange_{i}") for state in by_rank]
            if exchange and any(parts):
                exchange.load_states([parts], 1.0)


def _spec(variable, name):
    return dataclasses.replace(GradientSpec.of(variable, variable), name=name)
