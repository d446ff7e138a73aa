"""FullPrecision: the plain all-reduce as an exchange."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_onebit.collectives.requests import AllReduce, Exchanging, all_reduce_bytes
from tf_onebit.exchanges.base import Exchange
from tf_onebit.exchanges.gradients import Gradient, GradientSpec


class FullPrecision(Exchange):
    """Sum of uncompressed gradients by an all-reduce.

    Each worker sends `2 (K - 1) / K` times the size of the gradients per step.

    Args:
        bucket_bytes: see `Exchange`.

    Example:
        >>> exchange = FullPrecision()
        >>> exchange.get_config()
        {'bucket_bytes': 33554432}
    """

    compresses = False

    def __init__(self, bucket_bytes: int = 32 * 2**20) -> None:
        super().__init__(bucket_bytes)
        self._wire_bytes = 0
        self._contexts: list[Any] | None = None

    def get_config(self) -> dict[str, Any]:
        return {"bucket_bytes": self.bucket_bytes}

    def encode(self, gradients: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        pairs = [self.compress(gradient) for gradient in gradients]
        self._contexts = [context for _, context in pairs]
        return [tensor for tensor, _ in pairs]

    def deliver(
        self, message: Sequence[tf.Tensor], like: Sequence[Gradient], scale: float
    ) -> Exchanging[list[Gradient]]:
        # A shape may be unknown in the graph, but the variable's is known.
        self._wire_bytes = sum(
            (spec.size if (size := tensor.shape.num_elements()) is None else size)
            * tensor.dtype.size
            for spec, tensor in zip(self.specs, message, strict=True)
        )
        sums = yield AllReduce(message, f"{self.scope}/all_reduce", scale)
        contexts = self._contexts or [None] * len(sums)
        return [self.decompress(total, c) for total, c in zip(sums, contexts, strict=True)]

    def compress(self, gradient: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Returns the tensor to send for a gradient, and a context for `decompress`."""
        return gradient, None

    def decompress(self, total: tf.Tensor, context: Any) -> tf.Tensor:
        """Returns the sum of the gradients, from the sum of the tensors that were sent."""
        return total

    def bytes_sent(self) -> int:
        return all_reduce_bytes(self._wire_bytes, self.world_size)

    def expected_bytes(self, specs: Sequence[GradientSpec], world_size: int) -> dict[str, float]:
        size_bytes = sum(tf.as_dtype(spec.dtype).size * spec.size for spec in specs)
        return {"all_reduce": all_reduce_bytes(size_bytes, world_size)}
