"""Blocks of a plan, and the variables of a model that workers exchange at their end."""

import dataclasses

from tf_onebit._bmuf.arguments import check_turns, takes_weights_alone
from tf_onebit._bmuf.fragments import divide
from tf_onebit._bmuf.variables import block_variables, corrects_moments_of
from tf_onebit._measurement import with_block_work
from tf_onebit._training.model_optimizers import inner_optimizer
from tf_onebit.exchanges import GradientSpec


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Blocks to plan with.

    Attributes:
        sync_period, fragments, overlap: see `BlockMomentum`.

    Raises:
        ValueError: unless fragments can take turns in a block.
    """

    sync_period: int
    fragments: int = 1
    overlap: int = 0

    def __post_init__(self):
        check_turns(self.sync_period, self.fragments, self.overlap)

    @property
    def weights_alone(self):
        """True if workers exchange weights alone, and keep all state of their optimizers."""
        return takes_weights_alone(self.fragments, self.overlap)

    @property
    def name(self):
        """Name that people read."""
        fragments = f" in {self.fragments} fragments" if self.fragments > 1 else ""
        overlap = f", overlap {self.overlap}" if self.overlap else ""
        return f"blocks of {self.sync_period}{fragments}{overlap}"


@dataclasses.dataclass(frozen=True)
class BlockEnd:
    """Specs of the variables that `BlockMomentum` exchanges: lists of `GradientSpec`, all dense.

    Attributes:
        weights: of the weights, which the callback's exchange sends.
        moments: list of such lists, of the optimizer's moments. Their changes in a block are sent
            in full precision.
        averaged: of the variables whose values are averaged, in full precision.
        fragments: sizes of the parts that are exchanged in turn, as fractions of the weights.
    """

    weights: list
    moments: list
    averaged: list
    fragments: tuple = (1.0,)

    @classmethod
    def by_compression(cls, model, optimizer, blocks):
        """Returns the ends of blocks: dictionary by whether the callback's exchange compresses.

        Args:
            model, optimizer, blocks: see `of`.
        """
        return {
            compresses: cls.of(model, optimizer, compresses, blocks) for compresses in (False, True)
        }

    @classmethod
    def of(cls, model, optimizer, compresses, blocks):
        """Returns the `BlockEnd` of a model, or None if it cannot be trained in blocks.

        Args:
            model: Keras model, built.
            optimizer: Keras optimizer of its weights.
            compresses: whether the callback's exchange compresses.
            blocks: `Blocks`.

        Raises:
            ValueError: for more fragments than layers.
        """
        knows = corrects_moments_of(inner_optimizer(optimizer))
        correction = "bmuf_adam" if knows else "average"
        try:
            variables = block_variables(
                model,
                correction,
                compresses=compresses,
                optimizers=[optimizer],
                weights_alone=blocks.weights_alone,
            )
        except ValueError:
            return None
        sizes = [spec.size for spec in _specs(variables.weights)]
        parts = divide(variables.weights, blocks.fragments)
        fractions = tuple(sum(sizes[part]) / max(1, sum(sizes)) for part in parts)
        return cls(
            _specs(variables.weights),
            [_specs(moment.variables) for moment in variables.moments],
            _specs(variables.averaged),
            fractions,
        )

    def buckets(self, of_weights, in_full_precision, block_seconds):
        """Returns the buckets of a block's end: list of `planner.Bucket`.

        Args:
            of_weights: list of `planner.Bucket` for the exchange of the weights.
            in_full_precision: function from a list of `GradientSpec` to a list of
                `planner.Bucket`.
            block_seconds: as from `measure_block`.
        """
        changed = [*of_weights, *(b for moment in self.moments for b in in_full_precision(moment))]
        averaged = in_full_precision(self.averaged) if self.averaged else []
        return with_block_work(changed, block_seconds) + averaged


def _specs(variables):
    return [GradientSpec.of(variable, variable) for variable in variables]
