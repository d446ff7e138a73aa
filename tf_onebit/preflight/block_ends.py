"""What workers exchange of a model at the end of a block."""

import dataclasses

from tf_onebit.callbacks.block_variables import block_variables, corrects_moments_of
from tf_onebit.exchanges import FullPrecision
from tf_onebit.measurement import measure_exchange, with_block_work
from tf_onebit.training.gradients import spec_of
from tf_onebit.training.model_optimizers import inner_optimizer


@dataclasses.dataclass(frozen=True)
class BlockEnd:
    """What `BlockMomentum` exchanges, all of it dense: lists of `GradientSpec`.

    Attributes:
        weights: go through the exchange of the callback.
        moments: list of such lists, of the optimizer's state that travels as what a block has made
            of it, in full precision.
        averaged: what travels as it is.
    """

    weights: list
    moments: list
    averaged: list

    @classmethod
    def of(cls, model, optimizer, compresses):
        """What it is for a model, or None if it cannot be trained in blocks.

        Args:
            model: Keras model, built.
            optimizer: Keras optimizer of its weights.
            compresses: whether the callback's exchange does.
        """
        knows = corrects_moments_of(inner_optimizer(optimizer))
        correction = "bmuf_adam" if knows else "average"
        try:
            variables = block_variables(
                model, correction, compresses=compresses, optimizer=optimizer
            )
        except ValueError:
            return None
        return cls(
            _specs(variables.weights),
            [_specs(moment.variables) for moment in variables.moments],
            _specs(variables.averaged),
        )

    def buckets(self, weights, full_precision, world_size, block_seconds):
        """The list of `planner.Bucket` of a block's end.

        Args:
            weights: list of `planner.Bucket`: what the exchange of the weights takes.
            full_precision: the same in full precision.
            world_size: number of workers.
            block_seconds: as from `measure_block`.
        """
        changed = list(weights)
        for moment in self.moments:
            has_their_shapes = [s.shape for s in moment] == [s.shape for s in self.weights]
            changed += full_precision if has_their_shapes else _measured(moment, world_size)
        return with_block_work(changed, block_seconds) + _measured(self.averaged, world_size)


def _measured(specs, world_size):
    return measure_exchange(FullPrecision(), specs, world_size) if specs else []


def _specs(variables):
    return [spec_of(variable, variable) for variable in variables]
