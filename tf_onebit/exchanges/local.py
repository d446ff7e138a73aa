"""Local: no exchange at all."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_onebit.collectives.requests import Exchanging
from tf_onebit.exchanges.base import Exchange
from tf_onebit.exchanges.gradients import Gradient, GradientSpec, scaled


class Local(Exchange):
    """No exchange: each worker keeps its own gradients, and trains apart.

    It serves methods that synchronize models now and then, instead of gradients. Gradients are
    scaled as if all workers had the same ones: the mean over the workers becomes the local mean.

    Example:
        >>> Local().get_config()
        {}
    """

    dtypes = ("float64", "float32", "float16", "bfloat16")
    takes_sparse = True
    carries_flags = True
    can_be_delayed = False
    trains_apart = True

    def __init__(self) -> None:
        super().__init__(bucket_bytes=2**62)

    def get_config(self) -> dict[str, Any]:
        return {}

    def encode(self, gradients: Sequence[Gradient]) -> Sequence[Gradient]:
        return list(gradients)

    def deliver(
        self, message: Sequence[Gradient], like: Sequence[Gradient], scale: float
    ) -> Exchanging[tuple[list[Gradient], tf.Tensor]]:
        yield from ()  # makes this a generator; it requests nothing
        factor = self.world_size * scale
        return [scaled(g, factor) for g in message], tf.zeros([self.world_size], tf.int32)

    def bytes_sent(self) -> int:
        return 0

    def expected_bytes(self, specs: Sequence[GradientSpec], world_size: int) -> dict[str, float]:
        return {}
