"""State of one optimizer of a worker that trains in blocks."""

import dataclasses

from tf_onebit.training.copies import copies_of


@dataclasses.dataclass
class BlockOptimizer:
    """State of an optimizer that a block changes, and the steps that it counts.

    Attributes:
        optimizer: Keras optimizer, built.
        moments: list of `tf_onebit.optimizers.Moment`: the optimizer's state per weight. A decay
            of None is not known: such state is averaged as it is.
        averaged: list of its other variables that are averaged.
        own: list of its variables that workers begin with alike, and then keep to themselves.
        keeps_moments: whether its moments are among these.
        reset: function of a block's momentum, at its end, that may make other moments begin anew;
            or None.
        steps_at_begin: how many steps the optimizer, and its moments, had made when the block
            began.
    """

    optimizer: object
    moments: list
    averaged: list
    own: list
    keeps_moments: bool = False
    reset: object = None
    steps_at_begin: tuple = (0, 0.0)

    def begin(self):
        """Begins a block."""
        self.steps_at_begin = self._steps, getattr(self.optimizer, "moment_steps", 0.0)

    @property
    def batches_per_step(self):
        return self.optimizer.gradient_accumulation_steps or 1

    @property
    def _batches(self):
        """Number of batches that the optimizer has been given."""
        return int(copies_of(self.optimizer._iterations)[0])

    @property
    def _steps(self):
        """Number of steps that the optimizer has made."""
        return self._batches // self.batches_per_step

    @property
    def steps(self):
        """Number of steps since the block began."""
        return self._steps - self.steps_at_begin[0]

    def discard(self):
        """Goes back to the steps that the moments had made when the block began."""
        if hasattr(self.optimizer, "moment_steps"):
            self.optimizer.moment_steps = self.steps_at_begin[1]

    def move_on(self, block, steps_ahead, block_momentum):
        """Counts a block's steps, where workers have made unlike numbers of them.

        Args:
            block: `Block` of this optimizer.
            steps_ahead: by how many minibatches the moments are ahead of what has been done.
            block_momentum: eta of this block.
        """
        in_moments = self.steps if self.keeps_moments else block.mean_steps
        # Schedules follow those that have come furthest.
        missing = max(block.counted) - self.steps
        if missing:
            self.optimizer._iterations.assign(self._batches + missing * self.batches_per_step)
        if hasattr(self.optimizer, "moment_steps"):
            self.optimizer.moment_steps = self.steps_at_begin[1] + in_moments
            self.optimizer.advance_moments(steps_ahead)
        if self.reset is not None:
            self.reset(block_momentum)
