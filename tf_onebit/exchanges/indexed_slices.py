"""SparseGather: exact exchange of the gradients of embeddings."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_onebit.collectives.requests import AllGather, Exchanging
from tf_onebit.exchanges.base import Exchange
from tf_onebit.exchanges.gradients import Gradient, GradientSpec
from tf_onebit.exchanges.state import State


class SparseGather(Exchange):
    """Exact sum of the `tf.IndexedSlices` of all workers.

    Each worker adds its rows with the same index, gathers the rows of all workers, and adds again.
    Each index then occurs once. So optimizers that are not linear in the gradient (Adam, AdaGrad)
    see the whole gradient of a row at once.

    Tables with rows of the same shape take one collective together.
    """

    takes_sparse = True

    def __init__(self) -> None:
        super().__init__(bucket_bytes=1)

    def get_config(self) -> dict[str, Any]:
        return {}

    def create_state(self) -> None:
        self._bytes_sent = tf.Variable(0, dtype=tf.int64, trainable=False)

        def row_shape(index: int) -> tuple[int, ...]:
            return self.specs[index].shape[1:]

        by_shape = itertools.groupby(sorted(range(len(self.specs)), key=row_shape), row_shape)
        groups = [list(indices) for _, indices in by_shape]
        self._groups = [(own, _Tables([self.specs[i] for i in own])) for own in groups]

    def encode(self, gradients: Sequence[tf.IndexedSlices]) -> Sequence[tf.Tensor]:
        return [tables.message([gradients[i] for i in own]) for own, tables in self._groups]

    def deliver(
        self, message: Sequence[tf.Tensor], like: Sequence[tf.IndexedSlices], scale: float
    ) -> Exchanging[list[Gradient]]:
        exchanged: dict[int, Gradient] = {}
        for number, (mine, (own, tables)) in enumerate(zip(message, self._groups, strict=True)):
            lines = yield AllGather(mine, f"{self.scope}/rows_{number}", uneven=True)
            slices = tables.gradients(lines, [like[i] for i in own], scale)
            exchanged |= zip(own, slices, strict=True)
        sizes_bytes = [tf.size(mine, tf.int64) * mine.dtype.size for mine in message]
        self._bytes_sent.assign((self.world_size - 1) * tf.add_n(sizes_bytes))
        return [exchanged[i] for i in range(len(like))]

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


class _Tables:
    """Tables with rows of one shape and type, which share messages.

    A message is a matrix with a line for each row: first its number, and then its values. The bits
    of a number stand in as many columns as it needs. Row i of table t of T has the number i T + t.

    Args:
        specs: list of `GradientSpec` of the tables.
    """

    def __init__(self, specs: Sequence[GradientSpec]) -> None:
        self._count = len(specs)
        self._row_shape = specs[0].shape[1:]
        size = tf.as_dtype(specs[0].dtype).size
        most = self._count * max(spec.shape[0] for spec in specs)
        self._numbers = tf.int32 if size < tf.int64.size and most <= tf.int32.max else tf.int64
        self._columns = self._numbers.size // size

    def message(self, gradients: Sequence[tf.IndexedSlices]) -> tf.Tensor:
        """Returns the message of this worker."""
        numbers = [
            tf.cast(gradient.indices, self._numbers) * self._count + table
            for table, gradient in enumerate(gradients)
        ]
        values = [gradient.values for gradient in gradients]
        numbers, sums = _added(tf.concat(numbers, 0), tf.concat(values, 0))
        in_columns = tf.reshape(tf.bitcast(numbers, sums.dtype), [-1, self._columns])
        return tf.concat([in_columns, tf.reshape(sums, [-1, math.prod(self._row_shape)])], 1)

    def gradients(
        self, lines: tf.Tensor, like: Sequence[tf.IndexedSlices], scale: float
    ) -> list[tf.IndexedSlices]:
        """Returns the sums of the messages of all workers, times a factor.

        Args:
            lines: the messages, one below the other.
            like: list of gradients of the same types.
            scale: the factor.
        """
        numbers = tf.reshape(tf.bitcast(lines[:, : self._columns], self._numbers), [-1])
        values = tf.reshape(lines[:, self._columns :], [-1, *self._row_shape])
        numbers, sums = _added(numbers, values)
        tables = tf.cast(numbers % self._count, tf.int32)
        parts = [
            tf.dynamic_partition(one, tables, self._count)
            for one in (numbers // self._count, sums * scale)
        ]
        return [
            tf.IndexedSlices(own, tf.cast(rows, one.indices.dtype), one.dense_shape)
            for rows, own, one in zip(*parts, like, strict=True)
        ]


def _added(numbers: tf.Tensor, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns numbers without repeats, and the sums of the values that belong to each."""
    distinct, positions = tf.unique(numbers)
    return distinct, tf.math.unsorted_segment_sum(values, positions, tf.size(distinct))
