"""Momentum: a decaying sum of gradients."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_onebit import ops
from tf_onebit._layout import Layout
from tf_onebit.collectives.requests import Exchanging
from tf_onebit.transforms.base import Transform


class Momentum(Transform):
    """Momentum on 1 / world_size of the model, in place of the optimizer's.

    Equation::

        velocity <- momentum * velocity + g         g' = velocity
                                                    g' = g + momentum * velocity    with Nesterov's

    With a constant learning rate, `keras.optimizers.SGD` on g' makes the same steps as with the
    same momentum on g. The velocity here sums gradients, and not steps. So a new learning rate
    applies to all of it at once.

    Args:
        momentum: float, at least 0 and less than 1. Per step, for every batch size.
        nesterov: bool.

    Raises:
        ValueError: if momentum is out of this range.

    Example:
        >>> from tf_onebit import OneBit
        >>> OneBit(transforms=[Momentum(0.9)]).transforms[0].get_config()
        {'momentum': 0.9, 'nesterov': False}
    """

    def __init__(self, momentum: float, nesterov: bool = False) -> None:
        super().__init__()
        if not 0 <= momentum < 1:
            raise ValueError(
                f"momentum must be at least 0 and less than 1. Received: momentum={momentum!r}."
            )
        self.momentum = float(momentum)
        self.nesterov = bool(nesterov)

    def get_config(self) -> dict[str, Any]:
        return {"momentum": self.momentum, "nesterov": self.nesterov}

    def build(self, layout: Layout, rank: int, scope: str) -> None:
        self._velocities = [
            tf.Variable(tf.zeros([size]), trainable=False)
            for size in (layout.shard_sizes[rank], layout.plain_size)
        ]

    @property
    def sharded(self) -> Sequence[tf.Variable]:  # type: ignore[override]  # others may assign it
        return self._velocities[:1]

    @property
    def pending(self) -> Sequence[tf.Variable]:  # type: ignore[override]  # others may assign it
        return self._velocities

    def transform(
        self, aggregate: tf.Tensor, plain: tf.Tensor
    ) -> Exchanging[tuple[tf.Tensor, tf.Tensor]]:
        yield from ()  # makes this a generator; it requests nothing
        return tuple(
            ops.momentum(gradient, velocity, self.momentum, self.nesterov)
            for gradient, velocity in zip((aggregate, plain), self._velocities, strict=True)
        )
