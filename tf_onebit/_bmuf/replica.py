"""One worker's part of a block synchronization: the updates of its variables."""

import hashlib
import itertools
import math

import numpy as np
import tensorflow as tf

from tf_onebit import ops
from tf_onebit._bmuf.values import (
    assign_each,
    differences,
    first_copies,
    mean_of_arrays,
    mean_of_copies,
    moved_on,
    scaled,
    state_like,
    state_type,
)
from tf_onebit._framework_internals.tf_variables import assign_all, copies_of
from tf_onebit.collectives.requests import AllGather, AllReduce, Broadcast, all_reduce_bytes
from tf_onebit.exchanges.gradients import not_finite_flag, require_finite, with_overflow
from tf_onebit.exchanges.stages import FLAG_BYTES


class BlockReplica:
    """One worker's part of a block synchronization.

    Args:
        rank: rank of this worker.
        scope: prefix of the names of its requests.
        variables: `BlockVariables`.
        nesterov: see `BlockFilter`.
    """

    def __init__(self, rank, scope, variables, nesterov):
        self.rank = rank
        self.variables = variables
        self._scope = scope
        self._nesterov = nesterov
        self._weights = first_copies(variables.weights)
        self._moments = [first_copies(moment.variables) for moment in variables.moments]
        self._globals = list(map(state_like, self._weights))
        self._deltas = list(map(state_like, self._weights))
        self._begins = [list(map(state_like, moment)) for moment in self._moments]

    @property
    def _shown(self):
        """Variables that hold the global model while it is shown."""
        return [*self.variables.weights, *self.variables.statistics]

    @property
    def steps(self):
        """List of the numbers of steps of this worker's optimizers since the block began."""
        return [optimizer.steps for optimizer in self.variables.optimizers]

    @property
    def _all(self):
        return [*self.variables.changed, *self.variables.kept]

    def digest(self):
        """Returns a number of 64 bits that workers have in common if their states are equal."""
        digest = hashlib.blake2b(digest_size=8)
        for copy in itertools.chain(*map(copies_of, self._all)):
            digest.update(np.ascontiguousarray(copy.numpy()).view(np.uint8))
        return int.from_bytes(digest.digest(), signed=True)

    def broadcast_from(self, leader):
        """Generator: copies the state of worker `leader` to this one, and restarts from it."""
        values = yield Broadcast(first_copies(self._all), leader, f"{self._scope}/begin")
        for variable, value in zip(self._all, values, strict=True):
            assign_all(variable, value)
        self.restart()

    def discard(self):
        """Restores the global model, and the moments of the block's beginning."""
        self.show()
        for begins, moment in zip(self._begins, self._moments, strict=True):
            assign_each(moment, begins)
        for variable in self.variables.trained:
            assign_all(variable, copies_of(variable)[0])
        for optimizer in self.variables.optimizers:
            optimizer.discard()
        self.restart()

    def restart(self):
        """Makes the current model the global model, without block momentum."""
        assign_each(self._globals, self._weights)
        self.forget_momentum()
        for begins, moment in zip(self._begins, self._moments, strict=True):
            assign_each(begins, moment)
        self._local = None
        self._keep_statistics()
        self._count_from_now([0] * len(self.variables.optimizers))

    def take_deltas(self, places, variables):
        """Uses other variables for the momenta of a slice of the weights."""
        self._deltas[places] = variables

    def forget_momentum(self):
        assign_each(self._deltas, [tf.zeros_like(delta) for delta in self._deltas])

    def not_finite(self):
        """Returns 0, or 1 + the index in `variables.changed` of the first that is not finite."""
        averaged = map(mean_of_copies, self.variables.averaged)
        return int(not_finite_flag([*first_copies(self.variables.trained), *averaged]))

    def gather_row(self, row, name):
        """Generator: returns all workers' rows: int64 tensor `[world_size, len(row)]`."""
        return (yield AllGather(row[tf.newaxis], f"{self._scope}/{name}"))

    def synchronize(self, exchanges, fragment, factors, outer):
        """Generator: averages the workers' models, and updates this worker to the look-ahead.

        Args:
            exchanges: list of `Bucketed`, for the fragment's weights and for each of the moments.
                Its entries are None for a single worker.
            fragment: `Fragment`.
            factors: `BlockFactors`.
            outer: `OuterOptimizer` of the fragment, or None.
        """
        weight = factors.weights[self.rank]
        means, before = [], []
        for exchange, part in zip(
            exchanges, self._parts(fragment, factors.look_ahead_eta), strict=True
        ):
            if exchange is None:
                means.append([tf.identity(variable) for variable in part[0]])
                continue
            changes, before = differences(*part, weight, before)
            mean, _ = yield from exchange.run(changes)
            means.append(mean)
        averages = self._averages_of(fragment)
        if averages and exchanges[0] is not None:
            averages = yield from self._average(scaled(averages, weight))
        # The update waits for all results: an error must leave the model unchanged.
        with tf.control_dependencies([*tf.nest.flatten(means), *averages]):
            relative = [exchange is not None for exchange in exchanges]
            self._update(fragment, means, averages, factors, relative, outer)

    def _parts(self, fragment, look_ahead):
        """Returns what a fragment exchanges: a list of (variables, begins, deltas, eta)."""
        places = fragment.places
        weights = self._weights[places], self._globals[places], self._deltas[places], look_ahead
        moments = (
            (moment, begins, [None] * len(moment), 0.0)
            for moment, begins in zip(self._moments, self._begins, strict=True)
        )
        return [weights, *moments]

    def _averages_of(self, fragment):
        """Returns the values that this worker averages with a fragment: list of tensors."""
        averaged = self.variables.averaged if fragment.averages else []
        return [mean_of_copies(variable) for variable in averaged]

    def changes(self, fragment, scale, look_ahead):
        """Returns the changes of a fragment's weights since its block began, and averaged values.

        Args:
            fragment: `Fragment`.
            scale: float64 scalar by which both are multiplied.
            look_ahead: the `look_ahead_eta` of the fragment: float64 scalar.

        Returns:
            Two lists of tensors.
        """
        (part,) = self._parts(fragment, look_ahead)
        return differences(*part, scale, [])[0], scaled(self._averages_of(fragment), scale)

    def exchange(self, exchange, changes, averages):
        """Generator: sums what workers have returned from `changes`, while they train.

        Args:
            exchange: `Bucketed`, or None for a single worker.
            changes, averages: lists of tensors.

        Returns:
            Two lists like these.
        """
        if exchange is None:
            return changes, averages
        sums, _ = yield from exchange.run(changes)
        if averages:
            averages = yield from self._average(averages)
        return sums, averages

    def update_late(self, fragment, sums, averages, changes, values, scale, factors, outer):
        """Updates a fragment to the look-ahead, and keeps what was learned since `changes`.

        Args:
            fragment, scale: see `changes`.
            sums, averages: what `exchange` returned.
            changes, values: what `changes` returned.
            factors: `BlockFactors`.
            outer: `OuterOptimizer` of the fragment, or None.
        """
        places, correction = fragment.places, factors.correction
        if outer is not None:
            means = scaled(sums, correction)
            sums, correction = outer.step(self._globals[places], means), 1.0
        ops.late_block_update(
            sums,
            changes,
            self._weights[places],
            self._globals[places],
            self._deltas[places],
            factors.momentum,
            factors.rate,
            factors.look_ahead_eta,
            correction,
            scale,
            nesterov=self._nesterov,
        )
        self._update_copies(self.variables.weights[places])
        if averages:
            now = self._averages_of(fragment)
            inverse = tf.math.divide_no_nan(tf.ones([], tf.float64), scale)
            then = tf.nest.flatten(tf.cond(scale > 0, lambda: scaled(values, inverse), lambda: now))
            averages = scaled(averages, factors.correction)
            self._take_averages(list(map(moved_on, averages, then, now)), factors)

    def bytes_of_averages(self, world_size):
        """Returns the bytes per block that this worker sends for variables averaged as they are."""
        averaged = self.variables.averaged
        if not averaged:
            return 0
        size_bytes = sum(math.prod(v.shape) * tf.as_dtype(v.dtype).size for v in averaged)
        return all_reduce_bytes(size_bytes, world_size) + (world_size - 1) * FLAG_BYTES

    def _average(self, weighted):
        """Generator: returns the sums of the weighted values of variables that are averaged."""
        flag = not_finite_flag(weighted)
        flags = yield AllGather(flag[tf.newaxis], f"{self._scope}/flags")
        averages = yield AllReduce(weighted, f"{self._scope}/averages")
        names = [variable.path for variable in self.variables.averaged]
        return require_finite(averages, with_overflow(flags, averages), names)

    def _update(self, fragment, means, averages, factors, relative, outer):
        places, of_weights = fragment.places, means[0]
        if fragment.scales_changes:  # otherwise the correction is 1
            of_weights = scaled(of_weights, factors.correction)
        if outer is not None:
            begins = self._globals[places]
            if not relative[0]:
                of_weights = [
                    tf.cast(tf.cast(weight, begin.dtype) - begin, weight.dtype)
                    for weight, begin in zip(of_weights, begins, strict=True)
                ]
            of_weights, relative = outer.step(begins, of_weights), [True, *relative[1:]]
        ops.block_update(
            of_weights,
            self._weights[places],
            self._globals[places],
            self._deltas[places],
            factors.momentum,
            factors.rate,
            factors.look_ahead_eta,
            nesterov=self._nesterov,
            relative=relative[0],
        )
        for i, (moment, begins) in enumerate(zip(self._moments, self._begins, strict=True)):
            factor, floor = tf.unstack(factors.moments[i])
            ops.moments_update(means[1 + i], moment, begins, factor, floor, relative[1 + i])
        moments = [variable for moment in self.variables.moments for variable in moment.variables]
        self._update_copies([*self.variables.weights[places], *moments])
        if averages:
            self._take_averages(scaled(averages, factors.correction), factors)

    def _update_copies(self, variables):
        """Copies updated variables to all devices."""
        for variable in variables:
            first, *others = copies_of(variable)
            for copy in others:
                copy.assign(first)

    def _take_averages(self, averages, factors):
        """Assigns averages, unless no worker has made a step."""
        has_steps = tf.reduce_sum(factors.weights) > 0
        for variable, average in zip(self.variables.averaged, averages, strict=True):
            assign_all(variable, tf.where(has_steps, average, copies_of(variable)[0]))

    def move_on(self, fragments, blocks, steps_ahead, block_momentum, late):
        """Counts the steps of all workers, after fragments have been synchronized.

        Args:
            fragments: list of `Fragment`.
            blocks: list of `Block`, by optimizer: steps since they were counted before.
            steps_ahead: list of floats, by optimizer: number of minibatches by which the moments
                are ahead of the steps made.
            block_momentum: eta of this block.
            late: list of ints, by optimizer: steps of this worker that are not in `blocks`.
        """
        optimizers = self.variables.optimizers
        for optimizer, *counted in zip(optimizers, blocks, steps_ahead, late, strict=True):
            optimizer.move_on(self.rank, *counted)
            if optimizer.reset is not None:
                for fragment in fragments:
                    optimizer.reset(fragment.places, block_momentum)
        if any(fragment.averages for fragment in fragments):
            self._keep_statistics()
        self._count_from_now(late)

    def _keep_statistics(self):
        self._statistics = [tf.identity(v) for v in first_copies(self.variables.statistics)]

    def _count_from_now(self, made):
        for optimizer, steps in zip(self.variables.optimizers, made, strict=True):
            optimizer.begin(steps)

    def show(self):
        """Puts the global model into the variables, and keeps this worker's own values."""
        self._local = [tf.identity(variable) for variable in first_copies(self._shown)]
        for variable, value in zip(self._shown, self._global(), strict=True):
            assign_all(variable, tf.cast(value, variable.dtype))

    @property
    def is_changed(self):
        """True if the weights differ from the global model's, because they were assigned."""
        weights = zip(self._weights, self._globals, strict=True)
        return not all(bool(tf.reduce_all(w == tf.cast(kept, w.dtype))) for w, kept in weights)

    def hide(self):
        """Puts this worker's own values back: undoes `show`."""
        for variable, value in zip(self._shown, self._local, strict=True):
            assign_all(variable, tf.cast(value, variable.dtype))
        self._local = None

    def _global(self):
        return [*self._globals, *self._statistics]

    def _kept(self):
        """Returns the state beside the global model: dictionary of variables."""
        kept = {f"delta/{i}": delta for i, delta in enumerate(self._deltas)}
        for i, (kept_global, weight) in enumerate(zip(self._globals, self._weights, strict=True)):
            if kept_global.dtype != weight.dtype:  # the model's own has 16 bits
                kept[f"global/{i}"] = kept_global
        for i, begins in enumerate(self._begins):
            kept |= {f"begin_{i}/{j}": begin for j, begin in enumerate(begins)}
        return kept

    def state(self):
        """Returns this worker's state: dictionary of NumPy arrays.

        The worker must show the global model, which is then a part of the model's own state.
        """
        return {
            **{name: variable.numpy() for name, variable in self._kept().items()},
            # NumPy cannot save all types of weights.
            **{
                f"local/{i}": tf.cast(value, state_type(value)).numpy()
                for i, value in enumerate(self._local)
            },
            "begin": np.array([o.steps_at_begin for o in self.variables.optimizers]).ravel(),
        }

    def load_state(self, state, locals_of_all):
        """Loads a state. The model must hold the global model that belongs to it.

        Args:
            state: what `state` returned.
            locals_of_all: list of such states. This worker's own model becomes the mean of theirs.

        Raises:
            ValueError: for a state of other settings.
        """
        kept = self._kept()
        saved = {name for name in state if name.startswith(("delta/", "global/", "begin_"))}
        at_begin, optimizers = state["begin"].reshape(-1, 2).tolist(), self.variables.optimizers
        if saved != kept.keys() or len(at_begin) != len(optimizers):
            raise ValueError(
                "A resumed run must use the same BlockMomentum as before. Received: a state with "
                f"{len(saved)} variables of {len(at_begin)} optimizers. Expected: {len(kept)} "
                f"variables of {len(optimizers)} optimizers. Use the earlier moment_correction, "
                "exchange and optimizers, or begin again from the model's weights."
            )
        self.restart()
        for name, variable in kept.items():
            variable.assign(state[name])
        self._local = [
            tf.constant(mean_of_arrays([other[f"local/{i}"] for other in locals_of_all]))
            for i in range(len(self._shown))
        ]
        for optimizer, (steps, moment_steps) in zip(optimizers, at_begin, strict=True):
            optimizer.steps_at_begin = int(steps), moment_steps
