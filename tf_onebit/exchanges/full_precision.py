"""FullPrecision: the plain all-reduce as an exchange."""

import tensorflow as tf

from tf_onebit.collectives.requests import AllGather, AllReduce
from tf_onebit.exchanges.base import Exchange, all_reduce_bytes
from tf_onebit.exchanges.finite import not_finite_flag, with_overflow

FLAG_BYTES = 4


class FullPrecision(Exchange):
    """Sums gradients as they are, by an all-reduce.

    Sends `2 (K - 1) / K` times the size of the gradients per worker and step.

    Args:
        bucket_bytes, exclude: see `Exchange`.

    Example:
        >>> exchange = FullPrecision()
        >>> exchange.get_config()
        {'bucket_bytes': 33554432}
    """

    def __init__(self, bucket_bytes=32 * 2**20):
        super().__init__(bucket_bytes)
        self._wire_bytes = 0
        self._contexts = None

    def get_config(self):
        return {"bucket_bytes": self.bucket_bytes}

    def encode(self, gradients):
        pairs = [self.compress(gradient) for gradient in gradients]
        self._contexts = [context for _, context in pairs]
        return [not_finite_flag(gradients), *(tensor for tensor, _ in pairs)]

    def deliver(self, message, like, scale):
        flag, *wire = message
        flags = yield AllGather(flag[tf.newaxis], self.request_name("flags"))
        # A shape may be unknown in the graph; its variable's is not.
        self._wire_bytes = sum(
            (spec.size if (size := tensor.shape.num_elements()) is None else size)
            * tensor.dtype.size
            for spec, tensor in zip(self.specs, wire, strict=True)
        )
        sums = yield AllReduce(wire, self.request_name("all_reduce"), scale)
        exchanged = [
            self.decompress(total, context)
            for total, context in zip(sums, self._contexts or [None] * len(sums), strict=True)
        ]
        return exchanged, with_overflow(flags, exchanged)

    def message_variables(self, aggregated):
        held = [(spec.shape, spec.dtype) for spec in self.specs]
        return [
            tf.Variable(tf.zeros(shape, dtype), trainable=False)
            for shape, dtype in (((), tf.int32), *held)
        ]

    def compress(self, gradient):
        """What is sent in the place of a gradient, and what `decompress` needs beside its sum."""
        return gradient, None

    def decompress(self, total, context):
        """The sum over the workers, from the sum of what was sent."""
        return total

    def bytes_sent(self):
        flags_bytes = (self.world_size - 1) * FLAG_BYTES
        return all_reduce_bytes(self._wire_bytes, self.world_size) + flags_bytes
