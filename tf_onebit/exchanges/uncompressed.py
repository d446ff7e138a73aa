"""Uncompressed: the exchange and transforms of `OneBit` without quantization."""

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tf_onebit._configurable import deserialize, serialize
from tf_onebit.collectives.ordered_sum import added_in_order
from tf_onebit.collectives.requests import AllGather, AllToAll, Cond, Exchanging
from tf_onebit.exchanges.base import FLOAT_BYTES, Exchange
from tf_onebit.exchanges.gradients import Gradient, not_finite_flag, with_overflow
from tf_onebit.exchanges.state import State
from tf_onebit.exchanges.transforming import joined, parted, transformed, unchanged

FLAG_SIZE = 1


class Uncompressed(Exchange):
    """Exchange that sums and transforms gradients as `OneBit` does, but sends them in float32.

    The owner of a shard sums the shards of all workers in the order of ranks, applies the
    transforms, and sends the result to all. Each worker sends `2 (K - 1) / K` times 4 bytes per
    value, and the plain tensors. Arithmetic is in float32 for gradients of every type.
    `tf.IndexedSlices` become dense.

    Args:
        compressed: `OneBit`. If it is built, its transforms and their state are used. Otherwise
            transforms with the same hyper-parameters are created.
    """

    takes_sparse = True
    carries_flags = True
    compresses = False

    def __init__(self, compressed: Any) -> None:
        compressed = deserialize(compressed)
        super().__init__(compressed.bucket_bytes, compressed.exclude)
        self.compressed = compressed

    def get_config(self) -> dict[str, Any]:
        return {"compressed": serialize(self.compressed)}

    def create_state(self) -> None:
        if not self.compressed.built:
            scope = f"{self.scope}/compressed"
            self.compressed.build(self.specs, self.rank, self.world_size, scope, self.unit)

    def encode(self, gradients: Sequence[Gradient]) -> Sequence[tf.Tensor]:
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        flag = not_finite_flag(gradients)
        local = self.compressed.transformed_locally(gradients)
        return [self._rows(flag, *joined(local, self.compressed.layout))]

    def aggregate(self, message: Sequence[tf.Tensor]) -> Exchanging[Sequence[tf.Tensor]]:
        layout = self.compressed.layout
        received = yield AllToAll(message[0], f"{self.scope}/shards")
        rows = tf.unstack(received[:, FLAG_SIZE:], num=self.world_size)
        shard_size = layout.shard_sizes[self.rank]
        shard, _, plain = tf.split(
            added_in_order(rows),
            [shard_size, max(layout.shard_sizes) - shard_size, layout.plain_size],
        )
        flags = tf.cast(received[:, 0], tf.int32)
        shard, plain = yield Cond(
            tf.reduce_all(tf.equal(flags, 0)),
            lambda: transformed(self.compressed.transforms, shard, plain),
            lambda: unchanged(shard, plain),
        )
        return [tf.pad(shard, [[0, max(layout.shard_sizes) - shard_size]]), plain, flags]

    def deliver(
        self, message: Sequence[tf.Tensor], like: Sequence[Gradient], scale: float
    ) -> Exchanging[tuple[list[Gradient], tf.Tensor]]:
        layout = self.compressed.layout
        padded, plain, flags = message
        shards = yield AllGather(padded[tf.newaxis], f"{self.scope}/transformed")
        values = tf.concat([shards[k, :size] for k, size in enumerate(layout.shard_sizes)], axis=0)
        like = [tf.convert_to_tensor(gradient) for gradient in like]
        exchanged = parted(scale * values, scale * plain, like, layout)
        return exchanged, with_overflow(flags, exchanged)

    def _rows(self, flag: tf.Tensor, values: tf.Tensor, plain: tf.Tensor) -> tf.Tensor:
        """Returns the rows for the owners of the shards: flag, shard and plain values."""
        sizes = self.compressed.layout.shard_sizes
        rows = [
            tf.concat([tf.cast(flag, tf.float32)[tf.newaxis], shard, padding, plain], axis=0)
            for shard, padding in zip(
                tf.split(values, sizes),
                (tf.zeros([max(sizes) - size]) for size in sizes),
                strict=True,
            )
        ]
        return tf.stack(rows)

    def uncompressed(self) -> Exchange:
        return self

    def set_global_batch_size(self, samples: int) -> None:
        self.compressed.set_global_batch_size(samples)

    def residuals(self) -> Iterable[tuple[str, tf.Tensor | tf.Variable]]:
        return self.compressed.residuals()

    def state(self) -> State:
        return self.compressed.state()

    def load_state(self, states: Sequence[State], ratio: float = 1.0) -> None:
        self.compressed.load_state(states, ratio)

    def bytes_sent(self) -> int:
        layout = self.compressed.layout
        values = FLAG_SIZE + 2 * max(layout.shard_sizes) + layout.plain_size
        return (self.world_size - 1) * FLOAT_BYTES * values + self.compressed.transforms_bytes()
