"""The state of one optimizer of a worker that trains in blocks."""

import dataclasses

from tf_onebit._framework_internals.keras_optimizers import batch_counter_of
from tf_onebit._framework_internals.tf_variables import copies_of


@dataclasses.dataclass
class BlockOptimizer:
    """State of an optimizer that a block changes, and the steps that it counts.

    Attributes:
        optimizer: Keras optimizer, built.
        moments: list of `tf_onebit.optimizers.Moment`: the optimizer's state per weight. State with
            a decay of None, which is not known, is averaged as it is.
        averaged: list of its other variables that are averaged.
        own: list of its variables that are equal at first, and that workers do not average.
        keeps_moments: whether its moments are among `own`.
        reset: None, or a function that resets moments at the end of a block. It takes a slice of
            the weights, and the block momentum, and may do nothing.
        steps_at_begin: numbers of steps of the optimizer, and of its moments, when steps were last
            counted.
    """

    optimizer: object
    moments: list
    averaged: list
    own: list
    keeps_moments: bool = False
    reset: object = None
    steps_at_begin: tuple = (0, 0.0)

    def with_variables(self, function):
        """Returns this state with other variables: a function of each list of them."""
        moments = [m._replace(variables=function(m.variables)) for m in self.moments]
        averaged, own = function(self.averaged), function(self.own)
        return dataclasses.replace(self, moments=moments, averaged=averaged, own=own)

    def begin(self, made):
        """Begins to count steps, of which `made` have been made already."""
        moment_steps = getattr(self.optimizer, "moment_steps", 0.0)
        self.steps_at_begin = self._steps - made, moment_steps - made

    @property
    def batches_per_step(self):
        return self.optimizer.gradient_accumulation_steps or 1

    @property
    def _batches(self):
        """Number of batches that the optimizer has received."""
        return int(copies_of(batch_counter_of(self.optimizer))[0])

    @property
    def _steps(self):
        """Number of steps that the optimizer has made."""
        return self._batches // self.batches_per_step

    @property
    def steps(self):
        """Number of steps since they were last counted."""
        return self._steps - self.steps_at_begin[0]

    def discard(self):
        """Restores the moments' number of steps from when steps were last counted."""
        if hasattr(self.optimizer, "moment_steps"):
            self.optimizer.moment_steps = self.steps_at_begin[1]

    def move_on(self, rank, block, steps_ahead, late):
        """Counts the steps of all workers, which may have made different numbers.

        Devices that hold a model together share the optimizer. A second call changes nothing.

        Args:
            rank: rank of the worker.
            block: `Block` of this optimizer.
            steps_ahead: number of minibatches by which the moments are ahead of the steps made.
            late: number of steps of this worker that are not in `block`.
        """
        # Schedules follow the worker with the most steps.
        missing = max(block.counted) - (self.steps - late)
        if missing:
            batch_counter_of(self.optimizer).assign(self._batches + missing * self.batches_per_step)
        if hasattr(self.optimizer, "moment_steps"):
            in_moments = block.steps[rank] if self.keeps_moments else block.mean_steps
            self.optimizer.moment_steps = self.steps_at_begin[1] + in_moments + late
            self.optimizer.advance_moments(steps_ahead)
