"""Residuals: what workers have not sent yet."""

from collections.abc import Sequence

import tensorflow as tf


def runs_of(
    residual: tf.Tensor | tf.Variable, runs: Sequence[tuple[str, int]]
) -> list[tuple[str, tf.Tensor]]:
    """Splits a residual into runs. Returns a list of (name, float32 tensor).

    Args:
        residual: vector or variable, of any type of floats.
        runs: list of (name, number of values).
    """
    sizes = [size for _, size in runs]
    if not sizes:
        return []
    # A split along the only axis makes views, and a float32 residual is not copied.
    parts = tf.split(tf.cast(residual, tf.float32)[: sum(sizes)], sizes)
    return [(name, part) for (name, _), part in zip(runs, parts, strict=True)]


def sum_of_squares(values: tf.Tensor | tf.Variable) -> float:
    """Returns the sum of squares of a tensor or variable: a float."""
    # `l2_loss` computes the sum without a tensor of the squares.
    return 2.0 * float(tf.nn.l2_loss(values))
