"""SparseGather: exact exchange of the gradients of embeddings."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_onebit.collectives.requests import AllGather, Exchanging
from tf_onebit.exchanges.base import Exchange
from tf_onebit.exchanges.gradients import Gradient
from tf_onebit.exchanges.state import State


class SparseGather(Exchange):
    """Exact sum of the `tf.IndexedSlices` of all workers.

    It gathers the rows of all workers, and adds rows with the same index. Each index then occurs
    once. So optimizers that are not linear in the gradient (Adam, AdaGrad) see the whole gradient
    of a row at once.
    """

    takes_sparse = True

    def __init__(self) -> None:
        super().__init__(bucket_bytes=1)

    def get_config(self) -> dict[str, Any]:
        return {}

    def create_state(self) -> None:
        self._bytes_sent = tf.Variable(0, dtype=tf.int64, trainable=False)

    def encode(self, gradients: Sequence[tf.IndexedSlices]) -> Sequence[tf.Tensor]:
        return [part for gradient in gradients for part in (gradient.values, gradient.indices)]

    def deliver(
        self, message: Sequence[tf.Tensor], like: Sequence[tf.IndexedSlices], scale: float
    ) -> Exchanging[list[Gradient]]:
        exchanged, sizes_bytes = [], []
        for i, gradient in enumerate(like):
            mine = message[2 * i : 2 * i + 2]
            values = yield self._gather(mine[0], f"values_{i}")
            indices = yield self._gather(mine[1], f"indices_{i}")
            for tensor in mine:
                sizes_bytes.append(tf.size(tensor, tf.int64) * tensor.dtype.size)
            rows, positions = tf.unique(indices)
            sums = tf.math.unsorted_segment_sum(values, positions, tf.size(rows))
            exchanged.append(tf.IndexedSlices(sums * scale, rows, gradient.dense_shape))
        self._bytes_sent.assign((self.world_size - 1) * tf.add_n(sizes_bytes))
        return exchanged

    def _gather(self, tensor: tf.Tensor, stage: str) -> AllGather:
        return AllGather(tensor, f"{self.scope}/{stage}", uneven=True)

    def uncompressed(self) -> Exchange:
        return self.clone()

    def bytes_sent(self) -> int:
        return int(self._bytes_sent)

    def residuals(self) -> list[tuple[str, tf.Variable]]:
        return []

    def state(self) -> State:
        return {}  # the next exchange sets the number of bytes

    def load_state(self, states: Sequence[State], ratio: float = 1.0) -> None:
        pass
