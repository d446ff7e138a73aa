"""Block synchronization: averages of models that workers train apart, once per block."""

import collections
import contextlib
import time

import numpy as np
import tensorflow as tf

from tf_onebit._bmuf.filtering import BlockFiltering
from tf_onebit._bmuf.fragments import fragments_of
from tf_onebit._bmuf.groups import any_member, average_within
from tf_onebit._bmuf.meeting import End, Meetings
from tf_onebit._bmuf.replica import BlockReplica
from tf_onebit._bmuf.saved_blocks import SavedBlocks
from tf_onebit._bmuf.underway import Underway
from tf_onebit.exchanges import FullPrecision
from tf_onebit.exchanges.state import averaged, summed

# The worker whose model all begin with.
_LEADER = 0


class BlockSynchronization:
    """Synchronization of the models of workers that train apart (Chen, Ding, Huo 2020).

    During a block a worker's model starts from the look-ahead and is trained locally. In a `view`,
    and between epochs, models hold the global model.

    The model has one or more fragments, which synchronize in turn.

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
        fragments: number of fragments. With several, there are no moments.
        nominal_steps: number of steps of a block, if workers train on while it ends (`start`).
        outer_optimizer: Keras optimizer in place of the block filter, which must then be none
            (eta = 0, zeta = 1); or None.

    Attributes:
        batches: number of this process's batches in the block. The caller sets it to 0.
        turn: index of the fragment that synchronizes next.
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
        fragments=1,
        nominal_steps=None,
        outer_optimizer=None,
    ):
        self.engine = engine
        self._job = engine if model_group is None else model_group.job
        self._scope = scope
        self._within = within
        self._model_group = model_group
        members_here = 1 if model_group is None else model_group.members_here
        self._replicas = []
        for index, (rank, mine) in enumerate(zip(engine.ranks, variables, strict=True)):
            with engine.place(index):
                replica = BlockReplica(rank, scope, mine, block_filter.nesterov)
            self._replicas.append(replica)
        first = variables[0]
        template_of = template_of or (lambda moment: FullPrecision())
        templates = [template, *map(template_of, first.moments)]
        self._fragments = fragments_of(
            first,
            fragments,
            templates,
            engine,
            model_group,
            self._replicas,
            nominal_steps,
            outer_optimizer,
        )
        self._filtering = BlockFiltering(
            engine,
            block_filter,
            self._replicas,
            self._fragments,
            corrects_moments,
            warmup_steps,
            model_group,
            self._drop_on_all,
        )
        firsts = self._replicas[::members_here]
        self._overlaps = nominal_steps is not None
        self._meetings = Meetings(engine, self._job, firsts, self._overlaps)
        self._restarts = 0
        self._has_model = self._begun = self._shown = self._ended = False
        self._underway = collections.deque()
        self._saved = SavedBlocks(
            engine,
            self._job,
            self._replicas,
            self._fragments,
            self._filtering,
            self._underway,
            within,
            model_group,
        )
        self.batches = self.turn = self._turns_begun = 0
        self.latest = collections.deque(maxlen=100)

    @property
    def trained_by(self):
        """List of the Keras optimizers of this process's first worker."""
        return self._replicas[0].variables.trained_by

    @property
    def warms_up(self):
        """True if one worker counts alone. Workers then wait for each other at ends of blocks."""
        return self._filtering.warms_up

    def begin(self):
        """Begins a training. All workers call it first."""
        if self._has_model:
            self._catch_up()  # the training before may have been interrupted
        self._begun, self.turn = False, 0
        if self._has_model:
            self.show()

    def begin_epoch(self):
        self._ended = False

    def count_batches(self, batches):
        """Counts batches of this process, in the block and since each `start`."""
        self.batches += batches
        for underway in self._underway:
            underway.batches += batches

    def train(self):
        """Puts the look-ahead into the models, for training to go on.

        When training begins, all workers take worker 0's model, unless all still hold the earlier
        global model. If weights were assigned between epochs, training restarts from them.
        """
        self._ended = False
        if not self._begun:
            self._begun = True
            is_new = not self._has_model or any(r.is_changed for r in self._replicas)
            rows = self._meetings.gather(
                lambda replica: [is_new, replica.digest() if is_new else 0],
                "the first block",
                "begin",
            )
            if rows[:, 0].any():
                self._take_over(len(set(rows[list(self.engine.members), 1].tolist())) == 1)
            for fragment in self._fragments:  # workers compare them, and must do so together
                fragment.exchanges.of_workers(len(self._replicas))
        if self._shown and self._is_changed():
            self._drop()
            for replica in self._replicas:
                replica.restart()
            self._restart()
            self._restarts += 1
        self._hide()

    def _take_over(self, are_equal):
        """Begins with the leader's state, which may be gigabytes, unless all have the same."""
        self._drop()
        # Of the processes of a node or a group, one tells for all.
        if are_equal and self._within is None and self._model_group is None:
            for replica in self._replicas:
                replica.restart()
        else:
            self.engine.run(replica.broadcast_from(_LEADER) for replica in self._replicas)
        self._restart()
        self._restarts = 0

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
        self._filtering.restart()
        self._has_model, self._shown = True, False

    def synchronize(self, end=End.BLOCK):
        """Ends the block of the fragment whose turn it is, or of all if all workers end an epoch.

        A worker may have made no steps in it.

        Args:
            end: `End`: what has ended on this worker.

        Returns:
            `End`: what has ended on all workers.

        Raises:
            ValueError: on all workers, if weights were assigned on some of them only.
            InvalidArgumentError: on all workers, if one has weights that are not finite.
        """
        self.finish()
        waits, began = self._ended, time.monotonic_ns()
        if not waits:
            self.train()
        meeting = self._meetings.meet(self._status(end), end)
        # Workers that train on have begun the exchange of a fragment, even if none made a step.
        begun = self._overlaps and not meeting.ends_all and not self.warms_up
        self._count(meeting, self._exchange_next if begun else None)
        due = self._fragments if meeting.ends_all else [self._next()]
        self.turn = 0 if meeting.ends_all else self.turn
        due = [one for one in due if one.has_steps or begun]
        if due:
            if waits:
                self._hide()
            self._average_within(due)
            warms_up = self.warms_up
            self._filtering.end_blocks(
                due, meeting, lambda one, factors: one.synchronize(factors, warms_up)
            )
            self.latest.append((began, time.monotonic_ns()))
        return meeting.end

    def start(self):
        """Begins to end the block of the fragment whose turn it is, while this worker trains on.

        It goes on until `finish` or `synchronize`, or the next `start` of the same fragment. What
        was begun earlier is exchanged first.
        """
        while any(underway.index == self.turn for underway in self._underway):
            self._finish_first()
        began = time.monotonic_ns()
        self.train()
        index, fragment = self.turn, self._next()
        self._average_within([fragment])
        changes = fragment.changes()
        # All graphs are made here, because other threads are in no strategy's scope.
        meet = self._meetings.traced(self._status(End.BLOCK), End.BLOCK)
        exchange = fragment.traced_exchange(changes)
        steps = list(map(self._steps_of, self._replicas))
        before = self._underway[-1] if self._underway else None
        self._underway.append(Underway.begun(index, steps, changes, meet, exchange, before))
        self.latest.append((began, time.monotonic_ns()))

    def finish(self, batches=0):
        """Waits for what `start` has begun, if anything, and updates the model.

        Args:
            batches: number of batches since a `start`, for those to wait for. Default: all.

        Raises:
            ValueError, InvalidArgumentError: see `synchronize`.
        """
        while self._underway and self._underway[0].batches >= batches:
            self._finish_first()

    def _finish_first(self):
        self.train()  # a resumed run shows the global model, in which weights may be assigned
        if not self._underway:
            return
        underway = self._underway.popleft()
        began = time.monotonic_ns()
        fragment = self._fragments[underway.index]

        with self._filtering.restoring():
            meeting, sums = underway.result()
        self._count(meeting)

        def update(fragment, factors):
            if underway.has_means:
                factors = factors._replace(correction=tf.ones([], tf.float64))
            fragment.update_late(sums, underway.changes, factors)

        self._filtering.end_blocks([fragment], meeting, update, underway.steps)
        self.latest.append((began, time.monotonic_ns()))

    def _drop(self):
        """Waits for what is under way, and drops all of it but the numbers of steps."""
        while self._underway:
            underway = self._underway.popleft()
            with contextlib.suppress(tf.errors.InvalidArgumentError):
                meeting, _ = underway.result()
                self._filtering.count(meeting, underway.steps)

    def _drop_on_all(self):
        """Does the same for all workers together, for example after an error that all get."""
        self._catch_up()
        self._drop()

    def _catch_up(self):
        """Begins what others have begun. All workers call it together."""
        if not self._overlaps:
            return
        rows = self._meetings.gather(
            lambda replica: [self._turns_begun], "what is under way", "under_way"
        )
        while self._turns_begun < rows.max():
            self.start()

    def _exchange_next(self):
        """Exchanges the next fragment, whose sums nobody needs."""
        fragment = self._next()
        with contextlib.suppress(tf.errors.InvalidArgumentError):
            fragment.traced_exchange(fragment.changes())()

    def _status(self, end):
        """Returns what workers tell each other: see `Meeting`."""
        flag = self._filtering.flag()
        return lambda replica: [flag, self._restarts, end, *self._steps_of(replica)]

    def _steps_of(self, replica):
        """Returns the steps of a worker's optimizers since it told them last: list of ints."""
        place = self._replicas.index(replica)
        told = [underway.steps[place] for underway in self._underway]
        return np.subtract(replica.steps, np.sum(told, axis=0, dtype=np.int64)).tolist()

    def _next(self):
        """Returns the fragment whose turn it is. Then it is the turn of the next."""
        fragment = self._fragments[self.turn]
        self._turns_begun += 1
        self.turn = (self.turn + 1) % len(self._fragments)
        return fragment

    def _average_within(self, fragments):
        """Averages what a node averages with other nodes, with some of the fragments."""
        if self._within is not None and any(fragment.averages for fragment in fragments):
            average_within(self._within, self._replicas[0].variables.averaged, self._scope)

    def _count(self, meeting, answer=None):
        """Counts the steps of a `Meeting`, at which workers must be alike.

        Args:
            meeting: `Meeting`.
            answer: function that exchanges what others have begun to, in case of an error.
        """
        try:
            meeting.require_alike()
        except ValueError:
            if answer is not None:
                answer()
            self._drop_on_all()
            raise
        for fragment in self._fragments:
            fragment.count(meeting.by_optimizer)

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
            self._model_group.within.whereabouts.meet(end.place)
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
        sent = sum(
            fragment.blocks * fragment.exchanges.bytes_sent() for fragment in self._fragments
        )
        with_averages = self._fragments[-1].blocks
        sent += with_averages * self._replicas[0].bytes_of_averages(self.engine.world_size)
        steps = self._filtering.steps
        return sent / steps if steps else 0.0

    def residual_sum_of_squares(self):
        """Returns the sum of squares of the first worker's residuals in this process."""
        return sum(one.exchanges.residual_sum_of_squares() for one in self._fragments)

    def residual_squares(self):
        """Returns the sums of squares by name of what has a residual: dictionary of floats."""
        return summed(fragment.exchanges.residual_squares() for fragment in self._fragments)

    def metrics(self):
        """Returns the means of the fragments' metrics, for the Monitor: dictionary of floats."""
        all_exchanges = [fragment.exchanges for fragment in self._fragments]
        return averaged((exchanges.metrics(), exchanges.size) for exchanges in all_exchanges)

    def states(self):
        """Returns the states of this process' workers: list of dictionaries of NumPy arrays.

        Call it in a `view`. The global model is not in the states, but in the model.
        """
        try:
            return self._saved.states(self.batches, self.turn)
        except tf.errors.InvalidArgumentError:
            self._hide()
            self.finish()  # it restores the model, and says why
            raise

    def load_states(self, states, ranks, as_many):
        """Loads the states of an earlier run. Models must hold its global model.

        Args:
            states, ranks, as_many: see `load` of `SavedBlocks`.

        Raises:
            ValueError: see there.
        """
        self.batches, self.turn = self._saved.load(states, ranks, as_many)
        self._has_model = self._shown = True
