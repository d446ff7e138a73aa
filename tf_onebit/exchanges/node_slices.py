"""Slices of gradients, one for each worker of a node."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_onebit.collectives.ordered_sum import added_in_order
from tf_onebit.collectives.requests import AllGather, AllToAll, Exchanging
from tf_onebit.exchanges.gradients import GradientSpec
from tf_onebit.exchanges.indexed_slices import SparseGather


class NodeSlices:
    """Slices of a bucket's gradients. Workers of a node average, and later gather, a slice each.

    Requests are to the workers of the node.

    Args:
        specs: list of `GradientSpec` of the gradients.
        place: rank of this worker within its node.
        per_node: number of workers on the node.
        scope: prefix of the names of collectives.

    Attributes:
        specs: list of `GradientSpec` of this worker's slices.
    """

    def __init__(
        self, specs: Sequence[GradientSpec], place: int, per_node: int, scope: str
    ) -> None:
        self.specs = list(specs)
        self._place, self._per_node, self._scope = place, per_node, scope

    def averaged(self, gradients: Sequence[Any]) -> Exchanging[list[Any]]:
        """Generator: returns this worker's slices of the mean over the workers of the node.

        Args:
            gradients: list of gradients of this worker.
        """
        raise NotImplementedError

    def own(self, gradients: Sequence[Any]) -> list[Any]:
        """Returns this worker's slices of gradients that all workers of the node have: list."""
        raise NotImplementedError

    def joined(self, slices: Sequence[Any], name: str = "whole") -> Exchanging[list[Any]]:
        """Generator: returns the gradients whose slices the workers of the node have: list.

        Args:
            slices: list of slices, one from each gradient.
            name: name of the collective.
        """
        raise NotImplementedError


class DenseSlices(NodeSlices):
    """Slices of dense gradients: runs of rows along the last axis, so `OneBit` keeps its columns.

    All workers but the last ones have the same number of rows. A message within a node has the
    slices of all gradients one after another, each padded to that number.

    Attributes:
        ranges: list of (first value, number of values) of this worker's slices in the gradients.
    """

    def __init__(
        self, specs: Sequence[GradientSpec], place: int, per_node: int, scope: str
    ) -> None:
        super().__init__(specs, place, per_node, scope)
        self._whole = list(specs)
        self._padded: list[int] = []
        self.specs, self.ranges = [], []
        for spec in specs:
            is_matrix = len(spec.shape) > 1
            width = spec.shape[-1] if is_matrix else 1
            rows = spec.size // max(1, width)
            padded = -(-rows // per_node) * width
            begin = min(place * padded, spec.size)
            size = min(padded, spec.size - begin)
            shape = (size // max(1, width), width) if is_matrix else (size,)
            self._padded.append(padded)
            self.ranges.append((begin, size))
            self.specs.append(dataclasses.replace(spec, shape=shape, sliced_size=spec.size))

    def averaged(self, gradients: Sequence[tf.Tensor]) -> Exchanging[list[tf.Tensor]]:
        rows = [
            tf.reshape(_padded(gradient, size * self._per_node), [self._per_node, size])
            for gradient, size in zip(gradients, self._padded, strict=True)
        ]
        received = yield AllToAll(tf.concat(rows, axis=1), f"{self._scope}/slices")
        dtype = received.dtype
        # A sum of float16 may overflow where the mean does not.
        wide = tf.cast(received, tf.float32) if dtype.size < tf.float32.size else received
        total = added_in_order(tf.unstack(wide, num=self._per_node))
        mean = tf.cast(total * tf.constant(1 / self._per_node, total.dtype), dtype)
        parts = tf.split(mean, self._padded)
        return [
            tf.reshape(part[: spec.size], spec.shape)
            for part, spec in zip(parts, self.specs, strict=True)
        ]

    def own(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return [
            tf.reshape(tf.reshape(gradient, [-1])[begin : begin + size], spec.shape)
            for gradient, (begin, size), spec in zip(
                gradients, self.ranges, self.specs, strict=True
            )
        ]

    def joined(
        self, slices: Sequence[tf.Tensor], name: str = "whole"
    ) -> Exchanging[list[tf.Tensor]]:
        padded = [_padded(own, size) for own, size in zip(slices, self._padded, strict=True)]
        gathered = yield AllGather(tf.concat(padded, axis=0), f"{self._scope}/{name}")
        parts = tf.split(tf.reshape(gathered, [self._per_node, -1]), self._padded, axis=1)
        return [
            tf.reshape(tf.reshape(part, [-1])[: spec.size], spec.shape)
            for part, spec in zip(parts, self._whole, strict=True)
        ]


def _padded(tensor: tf.Tensor, size: int) -> tf.Tensor:
    """Returns the values of a tensor with zeros at their end: `[size]`."""
    values, missing = tf.reshape(tensor, [-1]), size - tensor.shape.num_elements()
    return tf.pad(values, [[0, missing]]) if missing else values  # a copy takes time


class SparseSlices(NodeSlices):
    """Slices of `tf.IndexedSlices`: worker p of n has the rows whose index is p modulo n."""

    def __init__(
        self, specs: Sequence[GradientSpec], place: int, per_node: int, scope: str
    ) -> None:
        super().__init__(specs, place, per_node, scope)
        self._gathers = {"rows": SparseGather(), "whole": SparseGather()}
        for name, gather in self._gathers.items():
            gather.build(specs, place, per_node, f"{scope}/{name}")

    def averaged(self, gradients: Sequence[tf.IndexedSlices]) -> Exchanging[list[tf.IndexedSlices]]:
        return self.own((yield from self._gathered("rows", gradients, 1 / self._per_node)))

    def own(self, gradients: Sequence[tf.IndexedSlices]) -> list[tf.IndexedSlices]:
        return [self._own_rows(gradient) for gradient in gradients]

    def _own_rows(self, gradient: tf.IndexedSlices) -> tf.IndexedSlices:
        is_own = tf.equal(gradient.indices % self._per_node, self._place)
        values, indices = (
            tf.boolean_mask(one, is_own) for one in (gradient.values, gradient.indices)
        )
        return tf.IndexedSlices(values, indices, gradient.dense_shape)

    def joined(
        self, slices: Sequence[tf.IndexedSlices], name: str = "whole"
    ) -> Exchanging[list[tf.IndexedSlices]]:
        return (yield from self._gathered(name, slices, 1.0))

    def _gathered(
        self, name: str, gradients: Sequence[tf.IndexedSlices], scale: float
    ) -> Exchanging[list[tf.IndexedSlices]]:
        """Generator: returns the sums over the workers of the node, times a factor: list."""
        gather = self._gathers[name]
        return (yield from gather.deliver(gather.encode(gradients), gradients, scale))
