"""Block synchronization: averages of models that workers train apart, once per block."""

import collections
import contextlib
import enum
import re
import time

import numpy as np
import tensorflow as tf

from tf_onebit._bmuf.equations import Block, BlockFilter
from tf_onebit._bmuf.exchanges import BlockExchanges
from tf_onebit._bmuf.factors import block_factors
from tf_onebit._bmuf.groups import any_member, average_within, first_flagged
from tf_onebit._bmuf.replica import BlockReplica
from tf_onebit._training.exchange_state import by_process, of_member
from tf_onebit.exchanges import FullPrecision

# The worker whose steps alone count while the model is warmed up.
_LEADER = 0
# Exchanges report a gradient; here it is the change of a block.
_NOT_FINITE = r"(All ranks|Rank \d+) met .* gradient of \W*([^'\\]+)"


class End(enum.IntEnum):
    """The end that a worker has reached when it meets the others."""

    BLOCK = 0
    EPOCH = 1
    TRAINING = 2


_NAMES = {End.BLOCK: "a block", End.EPOCH: "an epoch", End.TRAINING: "training"}


class BlockSynchronization:
    """Synchronization of the models of workers that train apart (Chen, Ding, Huo 2020).

    During a block a worker's model starts from the look-ahead and is trained locally. In a `view`,
    and between epochs, models hold the global model.

    Args:
        engine: `Engine` of the workers: of all processes, of the nodes, or of the processes that
            hold the same parts of a model.
        block_filter: `BlockFilter`.
        template: the user's exchange for the changes of a block.
        variables: list of `BlockVariables`, one for each of `engine.ranks`.
        corrects_moments: whether moments are moved to match the look-ahead, unless workers keep
            them. Otherwise they are averaged.
        warmup_steps: number of initial steps in which worker 0 alone counts.
        scope: prefix of the names of collectives.
        within: `Engine` of the processes of this worker's node, or None.
        model_group: `Group` that is one worker and holds the model together, or None.
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
        model_group=None,
        template_of=None,
    ):
        self.engine = engine
        self._job = engine if model_group is None else model_group.job
        self._filter = block_filter
        self._warmup_left = warmup_steps
        self._scope = scope
        self._within = within
        self._model_group = model_group
        self._members_here = 1 if model_group is None else model_group.members_here
        self._replicas = []
        for index, (rank, mine) in enumerate(zip(engine.ranks, variables, strict=True)):
            with engine.place(index):
                replica = BlockReplica(rank, scope, mine, block_filter.nesterov)
            self._replicas.append(replica)
        template_of = template_of or (lambda moment: FullPrecision())
        templates = [template, *map(template_of, variables[0].moments)]
        self._exchanges = BlockExchanges(templates, variables[0], engine, model_group)
        self._optimizers = variables[0].optimizers
        self._corrects_moments = corrects_moments
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
            if self._gather(lambda replica: [is_new], "the first block").any():
                self.engine.run(replica.broadcast_from(_LEADER) for replica in self._replicas)
                self._restart()
                self._restarts = 0
        if self._shown and self._is_changed():
            for replica in self._replicas:
                replica.restart()
            self._restart()
            self._restarts += 1
        self._hide()

    def _gather(self, row_of, place):
        """Gathers rows of whole numbers of all processes.

        Args:
            row_of: function from a replica to the row of its worker.
            place: place of this process in its program in a few words, for an error.
        """
        firsts = self._replicas[:: self._members_here]
        with self._job.whereabouts.naming_place(place):
            rows, *_ = self._job.run(replica.gather_status(row_of(replica)) for replica in firsts)
        return rows

    def _is_changed(self):
        """Tells whether weights were assigned to the models, in any of their parts."""
        changed = any(replica.is_changed for replica in self._replicas)
        group = self._model_group
        return changed if group is None else any_member(group, changed, self._scope)

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
        flag = self._flag()
        rows = self._gather(
            lambda replica: [flag, self._restarts, end, *replica.steps],
            f"the end of {_NAMES[end]}",
        )
        flags, restarts, *_ = rows.T.tolist()
        _, _, ends, *by_optimizer = rows[list(self.engine.members)].T.tolist()
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
        self._require_finite(flags, block)
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
        if self._within is not None:
            average_within(self._within, self._replicas[0].variables.averaged, self._scope)
        try:
            self._synchronize(factors)
        except tf.errors.InvalidArgumentError as error:
            where = re.search(_NOT_FINITE, error.message)
            if where is None:
                raise
            raise self._discarded(*where.groups()) from error
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

    def _flag(self):
        """Returns 0, or 1 + the index of the first variable of a group that is not finite.

        An exchange finds such a variable among peers. The other members of a group must know, too.
        """
        if self._model_group is None:
            return 0
        return max(replica.not_finite() for replica in self._replicas)

    def _require_finite(self, flags, block):
        """Raises InvalidArgumentError on all workers if a group that counts has a flag."""
        if any(flags):
            who = first_flagged(flags, block.weights, self._model_group)
            if who is not None:
                changed = self._replicas[0].variables.changed
                raise self._discarded(f"Rank {who}", changed[flags[who] - 1].path)

    def _discarded(self, who, name):
        """Restores the model from before the block. Returns the error that says why.

        Args:
            who: the workers that met an infinity or NaN.
            name: name of the variable in which they met it.
        """
        for replica in self._replicas:
            replica.discard()
        self._restart()
        return tf.errors.InvalidArgumentError(
            None,
            None,
            f"Weights must be finite after a block. {who} met an infinity or NaN in the change of "
            f"'{name}'. The model keeps the weights from before the block. Lower the learning rate "
            "or clip gradients. Then train on with a new optimizer, or from a backup.",
        )

    def _synchronize_all(self, factors):
        exchanges = self._exchanges.of_workers(len(self._replicas))
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
        if self._model_group is not None and self._model_group.processes > 1:
            # The members make every step together. Groups need not.
            self._model_group.within.whereabouts.meet(f"the end of {_NAMES[end]}")
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
        goes_on = self._hide  # after an error, members of a group cannot meet
        try:
            yield
            goes_on = self.train
        finally:
            if self._has_model and not shown and not self._ended:
                goes_on()

    def bytes_sent(self):
        """Returns the bytes that a worker sends at the end of blocks, per step: float."""
        in_a_block = self._exchanges.bytes_sent()
        in_a_block += self._replicas[0].bytes_of_averages(self.engine.world_size)
        return in_a_block * self._blocks / self._steps if self._steps else 0.0

    def residual_sum_of_squares(self):
        """Returns the sum of squares of the first worker's residuals in this process."""
        return self._exchanges.residual_sum_of_squares()

    def residual_squares(self):
        """Returns the sums of squares by name of what has a residual: dictionary of floats."""
        return self._exchanges.residual_squares()

    def states(self):
        """Returns the states of this process' workers: list of dictionaries of NumPy arrays.

        Call it in a `view`. The global model is not in the states, but in the model.
        """
        own = [*self.equivalent_steps, self._look_ahead_eta, self._warmup_left, self.batches]
        own = {"filter": np.array(own, np.float64)}
        states = by_process([replica.state() for replica in self._replicas], self._members_here)
        of_exchanges = self._exchanges.states(len(states))
        return [state | own | sent for state, sent in zip(states, of_exchanges, strict=True)]

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
        group, peers = self._model_group, states
        if group is not None:  # other members have other parts
            peers = states[group.member :: group.processes]
        mine = [states[rank] for rank in ranks] if as_many else [peers[0]] * len(ranks)
        members = self._members_here
        for place, replica in enumerate(self._replicas):
            process, member = divmod(place, members)
            own = of_member(mine[process], member, members)
            others = [own] if as_many else [of_member(one, member, members) for one in peers]
            replica.load_state(own, others)
        of_filter = mine[0]["filter"].tolist()
        *self.equivalent_steps, self._look_ahead_eta, self._warmup_left, batches = of_filter
        self.batches = int(batches)
        self._has_model = self._shown = True
        if as_many:  # of nodes each is one worker here, with the state of this process
            states = [{} for _ in range(self._job.world_size)]
            for rank, state in zip(self._job.ranks, mine, strict=True):
                states[rank] = state
        self._exchanges.load_states(states)
