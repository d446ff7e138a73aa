"""The factors of a block synchronization, as the equations give them for the workers' steps."""

import typing

import tensorflow as tf

from tf_onebit._bmuf.equations import moment_factors

_NO_FLOOR = -1.0


class BlockFactors(typing.NamedTuple):
    """The factors of one synchronization: float64 tensors.

    Attributes:
        weights: `[world_size]`: the factors of what workers send.
        correction: the factor of their sum, which is then the mean.
        momentum, rate: eta and zeta.
        look_ahead_eta: the eta of the look-ahead that the block began with, 0 without Nesterov.
        moments: `[moments, 2]`: factor and floor of each, as from `moment_factors`.
    """

    weights: typing.Any
    correction: typing.Any
    momentum: typing.Any
    rate: typing.Any
    look_ahead_eta: typing.Any
    moments: typing.Any


def block_factors(weights, correction, block_filter, look_ahead_eta, of_optimizers):
    """Computes the factors of a synchronization.

    Args:
        weights, correction: see `BlockFactors`.
        block_filter: `BlockFilter`.
        look_ahead_eta: the eta of the look-ahead that the block began with.
        of_optimizers: list of (`BlockOptimizer`, its `Block`, number of minibatches by which its
            moments are ahead of the steps made).

    Returns:
        `BlockFactors`.
    """
    factors = BlockFactors(
        weights=weights,
        correction=correction,
        momentum=block_filter.block_momentum,
        rate=block_filter.block_learning_rate,
        look_ahead_eta=look_ahead_eta,
        moments=[
            _factors_of(moment, its_block, steps_ahead)
            for optimizer, its_block, steps_ahead in of_optimizers
            for moment in optimizer.moments
        ],
    )
    return BlockFactors(*(tf.constant(factor, tf.float64) for factor in factors))


def _factors_of(moment, block, steps_ahead):
    """Computes the factor of a `Moment`, and its floor: see `moment_factors`."""
    if moment.decay is None:
        return 0.0, _NO_FLOOR
    factor, floor = moment_factors(block, steps_ahead, moment.decay)
    # Only rounding could make averages of squares negative. Without steps ahead the moment
    # equals the average to the bit, so it needs no floor.
    return factor, floor if moment.of_squares and steps_ahead else _NO_FLOOR
