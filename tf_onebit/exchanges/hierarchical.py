"""Hierarchical: exchange of gradients in two tiers, within nodes and between them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_onebit.collectives.requests import Exchanging, within_node
from tf_onebit.exchanges.bucketed import Bucketed, RunBucket
from tf_onebit.exchanges.gradients import Gradient, GradientSpec
from tf_onebit.exchanges.node_slices import DenseSlices, NodeSlices, SparseSlices
from tf_onebit.exchanges.schedule import AnyExchange
from tf_onebit.exchanges.scheduled_bucket import Answered, ScheduledBucket
from tf_onebit.exchanges.state import WORKERS_PER_NODE, State


class Hierarchical(Bucketed):
    """Exchange of all gradients of a model between nodes, each with several workers.

    Worker p of a node with P workers has slice p of each gradient. It exchanges that slice with
    the workers at its place in the other nodes, by the user's exchange::

        1. reduce-scatter within the node, in the type of the gradients: mean of slice p
        2. the user's exchange between the nodes, of 1/P of the gradients
        3. all-gather within the node

    So a node sends as many bytes as a single worker would, and its workers share the work of the
    exchange. Residuals are 1/P of the gradients on each worker. Updates are those of the node's
    mean gradients, so each worker takes its slice of its own.

    The results are the same on all workers of the job, to the bit.

    Args:
        template, takes_updates: see `Bucketed`.
        place: rank of this worker within its node.
        per_node: number of workers on each node.
    """

    def __init__(
        self, template: AnyExchange, takes_updates: bool = False, place: int = 0, per_node: int = 1
    ) -> None:
        super().__init__(template, takes_updates)
        self._place, self.per_node = place, per_node
        self._slices: dict[str, NodeSlices] = {}

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"place": self._place, "per_node": self.per_node}

    def _exchanged_of(self, specs: list[GradientSpec], scope: str) -> list[GradientSpec]:
        kind = SparseSlices if specs[0].sparse else DenseSlices
        self._slices[scope] = kind(specs, self._place, self.per_node, scope)
        return self._slices[scope].specs

    def run(
        self, gradients: Sequence[Gradient], scale: float = 1.0
    ) -> Exchanging[tuple[list[Gradient], tf.Tensor]]:
        slices = yield from self._given(gradients)
        return (yield from super().run(slices, self._scale_of_slices(scale)))

    def run_uncompressed(
        self, gradients: Sequence[Gradient], scale: float
    ) -> Exchanging[tuple[list[Gradient], tf.Tensor]]:
        slices = yield from self._sliced(gradients, (DenseSlices, SparseSlices))
        return (yield from super().run_uncompressed(slices, self.per_node * scale))

    def run_alike(
        self, updates: Sequence[Gradient]
    ) -> Exchanging[tuple[list[Gradient], tf.Tensor]]:
        slices = yield from self._sliced(updates, ())
        return (yield from super().run_alike(slices))

    def gather(
        self, gradients: Sequence[Gradient], scale: float
    ) -> Exchanging[list[list[Gradient]]]:
        # Workers decode slices, so there is nothing left to add.
        exchanged, _ = yield from self.run(gradients, scale)
        return [exchanged]

    def gradients_of(self, gathered: Sequence[list[Gradient]]) -> list[Gradient | None]:
        return list(gathered[0])

    def add_to(
        self,
        variables: Sequence[tf.Variable],
        gathered: Sequence[list[Gradient]],
        scale: float,
        factor: tf.Tensor | float,
    ) -> None:
        pass

    def hold(self, gradients: Sequence[Gradient]) -> Exchanging[None]:
        slices = yield from self._given(gradients)
        yield from super().hold(slices)

    def release(
        self, number: int, like: Sequence[Gradient], scale: float
    ) -> Exchanging[tuple[list[Gradient], tf.Tensor]]:
        slices = yield from self._sliced(like, ())
        return (yield from super().release(number, slices, self._scale_of_slices(scale)))

    def state(self) -> State:
        state = super().state()
        return state and state | {WORKERS_PER_NODE: np.array(self.per_node)}

    def mean_of_node(
        self, gradients: Sequence[Gradient]
    ) -> Exchanging[tuple[list[Gradient], None]]:
        """Generator: makes the mean of dense gradients over the workers of the node.

        Sparse ones stay as they are. The requests are to the workers of the node.

        Args:
            gradients: list of gradients of this worker.

        Returns:
            List of gradients, the same on all workers of the node if they are dense. None in place
            of flags, which the exchange of updates will have.
        """
        means = list(gradients)
        for bucket in self.buckets:
            of_bucket = self._slices[bucket.scope]
            if isinstance(of_bucket, DenseSlices):
                mine = yield from of_bucket.averaged([gradients[i] for i in bucket.indices])
                whole = yield from of_bucket.joined(mine, "mean")
                for i, mean in zip(bucket.indices, whole, strict=True):
                    means[i] = mean
        return means, None

    def _given(self, gradients: Sequence[Gradient]) -> Exchanging[list[Gradient]]:
        """Generator: returns this worker's slices of what `run` takes: list of gradients."""
        # Updates are of the node's mean gradients. Sparse gradients, which stand in for updates,
        # are still this worker's own.
        averaged = (SparseSlices,) if self._takes_updates else (DenseSlices, SparseSlices)
        return (yield from self._sliced(gradients, averaged))

    def _scale_of_slices(self, scale: float) -> float:
        """Returns the factor on the sum over nodes, for one on what `run` takes of all workers."""
        return scale if self._takes_updates else self.per_node * scale

    def _sliced(
        self, gradients: Sequence[Gradient], averaged: tuple[type[NodeSlices], ...]
    ) -> Exchanging[list[Gradient]]:
        """Generator: returns this worker's slices of gradients: list.

        Args:
            gradients: list of gradients.
            averaged: kinds of slices of which the workers of the node make the mean. Of others,
                each worker takes its own.
        """
        slices = list(gradients)
        for bucket in self.buckets:
            of_bucket = self._slices[bucket.scope]
            own = [gradients[i] for i in bucket.indices]
            if isinstance(of_bucket, averaged):
                own = yield from within_node(of_bucket.averaged(own))
            else:
                own = of_bucket.own(own)
            for i, one in zip(bucket.indices, own, strict=True):
                slices[i] = one
        return slices

    def _run_buckets(
        self,
        run_bucket: RunBucket,
        tensors: Sequence[Gradient],
    ) -> Exchanging[tuple[list[list[Gradient]], tf.Tensor]]:
        def run_and_join(
            bucket: ScheduledBucket, own: list[Gradient], answers: Sequence[tf.Tensor]
        ) -> Exchanging[Answered]:
            slices, flags, answer = yield from run_bucket(bucket, own, answers)
            whole = yield from within_node(self._slices[bucket.scope].joined(slices))
            return whole, flags, answer

        return (yield from super()._run_buckets(run_and_join, tensors))

    def _ranges_of(self, bucket: ScheduledBucket) -> list[tuple[int, int]] | None:
        of_bucket = self._slices[bucket.scope]
        return of_bucket.ranges if isinstance(of_bucket, DenseSlices) else None
