"""BlockFiltering: the block filter at work on the workers of this process."""

import contextlib
import re

import tensorflow as tf

from tf_onebit._bmuf.equations import Block, BlockFilter
from tf_onebit._bmuf.factors import block_factors
from tf_onebit._bmuf.groups import first_flagged

# Exchanges report a gradient; here it is the change of a block.
_NOT_FINITE = r"(All ranks|Rank \d+) met .* gradient of \W*([^'\\]+)"


class BlockFiltering:
    """The block filter at work on the workers of this process: it updates their models.

    Args:
        engine, block_filter, corrects_moments, warmup_steps, model_group: see
            `BlockSynchronization`.
        replicas: list of `BlockReplica`, by worker of this process.
        fragments: list of `Fragment`.
        drop: function that drops what is under way on all workers, when they have met an error.

    Attributes:
        warmup_left: number of steps in which one worker counts alone. It may become negative.
        steps: float: number of synchronized steps of a worker, on average.
    """

    def __init__(
        self,
        engine,
        block_filter,
        replicas,
        fragments,
        corrects_moments,
        warmup_steps,
        model_group,
        drop,
    ):
        self._engine, self._filter, self._model_group = engine, block_filter, model_group
        self._drop = drop
        self._replicas, self._fragments = replicas, fragments
        self._optimizers = replicas[0].variables.optimizers
        self._corrects_moments = corrects_moments
        self.warmup_left, self.steps = warmup_steps, 0.0

    def restart(self):
        """Begins a block of all fragments, without block momentum."""
        for fragment in self._fragments:
            fragment.restart()

    @property
    def warms_up(self):
        """True if one worker counts alone."""
        return self.warmup_left > 0

    def end_blocks(self, due, meeting, update, steps=None):
        """Ends the block of fragments.

        Args:
            due: list of `Fragment`.
            meeting: `Meeting`.
            update: function from a fragment and `BlockFactors` that updates the model.
            steps: list, by replica, of the steps that `meeting` counts. Default: all.
        """
        warms_up = self.warms_up
        block_filter = self._filter
        if warms_up:
            block_filter = BlockFilter(0.0, 1.0, block_filter.nesterov)
        blocks = [fragment.block(warms_up) for fragment in due]
        self._require_finite(meeting.flags, blocks[0][0])
        for fragment, (block, of_optimizers) in zip(due, blocks, strict=True):
            steps_ahead = self._filter_fragment(
                fragment, block_filter, block, of_optimizers, update
            )
        # A leader counts alone until the warm-up ends.
        leader = blocks[0][0].leader
        eta = block_filter.block_momentum
        counted = self.count(meeting, steps, due, steps_ahead, eta, leader)
        if warms_up:
            self.warmup_left -= max(counted.counted)
            for fragment in due:
                fragment.equivalent_steps = [0.0] * len(self._optimizers)
            for replica in self._replicas:
                replica.forget_momentum()
            if not self.warms_up:
                # All workers take the leader's whole state, and discard their own.
                self._engine.run(replica.broadcast_from(leader) for replica in self._replicas)
                self.restart()

    def count(self, meeting, steps=None, due=(), steps_ahead=None, block_momentum=0.0, leader=None):
        """Lets the workers' optimizers count the steps of a meeting. Returns its `Block`.

        Args:
            meeting, steps, due: see `end_blocks`.
            steps_ahead, block_momentum: see `move_on` of `BlockReplica`.
            leader: rank of the only worker that counts, or None.
        """
        counted = Block(tuple(map(max, zip(*meeting.by_optimizer, strict=True))), leader)
        of_optimizers = list(map(counted.of_optimizer, meeting.by_optimizer))
        self.steps += counted.mean_steps if any(counted.counted) else 0.0
        steps_ahead = steps_ahead or [0.0] * len(of_optimizers)
        for i, replica in enumerate(self._replicas):
            made = replica.steps if steps is None else steps[i]
            late = [now - then for now, then in zip(replica.steps, made, strict=True)]
            replica.move_on(due, of_optimizers, steps_ahead, block_momentum, late)
        return counted

    def _filter_fragment(self, fragment, block_filter, block, of_optimizers, update):
        """Filters a fragment's block. Returns by how many steps moments are ahead, by optimizer."""
        equivalent_steps, steps_ahead = zip(
            *(
                block_filter.steps(its_block.mean_steps, before)
                for its_block, before in zip(of_optimizers, fragment.equivalent_steps, strict=True)
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
            *fragment.weights(block),
            block_filter,
            fragment.look_ahead_eta,
            list(zip(self._optimizers, of_optimizers, steps_ahead, strict=True)),
        )
        with self.restoring():
            update(fragment, factors)
        fragment.move_on(block_filter, equivalent_steps)
        return steps_ahead

    def _moves_moments(self, optimizer, block):
        """Tells whether an optimizer's moments are moved to match the look-ahead."""
        # Moments of a single worker are too noisy: the correction multiplies their noise.
        # Without a step in the block their direction is not known.
        return self._corrects_moments and not optimizer.keeps_moments and block.mean_steps > 0

    @contextlib.contextmanager
    def restoring(self):
        """Restores the model from before a block if an exchange meets an infinity or NaN."""
        try:
            yield
        except tf.errors.InvalidArgumentError as error:
            where = re.search(_NOT_FINITE, error.message)
            if where is None:
                raise
            raise self._discarded(*where.groups()) from error

    def flag(self):
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
        self._drop()
        for replica in self._replicas:
            replica.discard()
        self.restart()
        return tf.errors.InvalidArgumentError(
            None,
            None,
            f"Weights must be finite after a block. {who} met an infinity or NaN in the change of "
            f"'{name}'. The model keeps the weights from before the block. Lower the learning rate "
            "or clip gradients. Then train on with a new optimizer, or from a backup.",
        )
