"""Reductions over replicas of values other than gradients."""

import contextlib
import zlib
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tf_onebit._framework_internals.keras_calls import is_asked_for_metrics, is_asked_for_shapes
from tf_onebit._framework_internals.tf_strategies import is_mirrored, mark_as_unsaveable, regroup
from tf_onebit.collectives.requests import AllGather, AllReduce, one_request
from tf_onebit.distribute.replicas import sum_of_replicas

_MUST_BE_ALIKE = (
    "Values to reduce must have the same shape and type on all replicas of all workers. "
    "Received: {}. Pad them, or also reduce along the axis in which they differ: "
    "strategy.reduce(..., axis=0)."
)


if TYPE_CHECKING:
    from tensorflow.distribute import Strategy as _MixedInto
else:
    _MixedInto = object


class Reducing(_MixedInto):
    """Mixin for both strategies, with reductions that differ from TensorFlow's."""

    def reduce(self, reduce_op: tf.distribute.ReduceOp | str, value: Any, axis: int | None) -> Any:
        local = self.experimental_local_results
        if is_asked_for_shapes():
            # Keras uses only shapes and types. They may differ between replicas in the first batch.
            return tf.nest.map_structure(lambda part: local(part)[0], value)
        if is_asked_for_metrics() and all(part.shape.rank == 0 for part in local(value)):
            # Keras reduces every metric in every step, along an axis that scalars do not have. It
            # gets this worker's mean, without communication. Metrics of an epoch are over all
            # workers.
            return sum_of_replicas(local(value)) / len(local(value))
        return super().reduce(reduce_op, value, axis)


class ReducingExtended:
    """Mixin for the implementations of both strategies, with reductions of their own."""

    # Whether TensorFlow is counting the replicas with data at the moment.
    counts_data = False

    def _reduce_to(self, reduce_op, value, destinations, options):
        # TensorFlow's method for several workers does not reduce structures.
        def reduced(part):
            return self._reduce_one(reduce_op, part, destinations, options)

        return tf.nest.map_structure(reduced, value)

    def _reduce_one(self, reduce_op, value, destinations, options):
        is_of_replicas = isinstance(value, tf.distribute.DistributedValues)
        is_between_workers = self._num_workers > 1 and not is_mirrored(value)
        if (is_between_workers or is_of_replicas) and self._is_ours([value]):
            return self._reduced(reduce_op, [value])[0]
        if is_between_workers and tf.executing_eagerly():
            self._require_one_shape_on_workers(value)
        shows_members = is_between_workers and self.members > 1
        all_devices = self.showing_members() if shows_members else contextlib.nullcontext()
        with self.engine.whereabouts.naming_who_left(), all_devices:
            result = super()._reduce_to(reduce_op, value, destinations, options)
        if reduce_op == tf.distribute.ReduceOp.MEAN or not is_of_replicas:
            return result
        return self._of_groups(result, len(self._parts(value)))

    def _batch_reduce_to(self, reduce_op, value_destination_pairs, options):
        values = [self._on_each_device(value) for value, _ in value_destination_pairs]
        if self._is_ours(values):
            return self._reduced(reduce_op, values)
        destinations = [destination for _, destination in value_destination_pairs]
        pairs = list(zip(values, destinations, strict=True))
        return super()._batch_reduce_to(reduce_op, pairs, options)

    def _on_each_device(self, value):
        """Returns a value with one part per replica, even if all replicas passed one object."""
        if isinstance(value, tf.distribute.DistributedValues):
            return value
        return regroup((value,) * len(self._devices), always_wrap=True)

    def _is_ours(self, values):
        """Tells whether to reduce values as gradients are reduced: in graphs, with fixed keys.

        TensorFlow's own reductions use a new key for every call. Then no two steps could run in
        one loop, and each step would leak some memory.
        """
        if any(map(is_mirrored, values)):
            return False
        dense = not any(isinstance(part, tf.IndexedSlices) for part in self._parts(values))
        return dense and (self._num_workers == 1 or not tf.executing_eagerly())

    def _reduced(self, reduce_op, values):
        columns = [[tf.convert_to_tensor(part) for part in self._parts(value)] for value in values]
        for column in columns:
            _require_one_shape(column)
        totals = [sum_of_replicas(column) for column in columns]
        if self._num_workers > 1:
            mark_as_unsaveable()  # because other workers must take part in the graph
            request = AllReduce(totals, f"tf_onebit/reduce_{self._numbers.next()}")
            (totals,) = self.engine.run([one_request(request)])
        if reduce_op != tf.distribute.ReduceOp.MEAN:
            pairs = zip(totals, columns, strict=True)
            return [self._of_groups(total, len(column)) for total, column in pairs]
        return [
            total / (len(column) * self._num_workers)
            for total, column in zip(totals, columns, strict=True)
        ]

    def _of_groups(self, total, terms):
        """Returns the sum over the groups, if all members of each have added the same value."""
        if self.members == 1 or terms < len(self._devices):
            return total
        return total // self.members if total.dtype.is_integer else total / self.members

    def _require_one_shape_on_workers(self, value):
        """Raises ValueError, on all workers, if kinds of a value differ between any two replicas.

        The kind is the type and shape: see `_kind_of`.
        """
        kinds = {_kind_of(part) for part in self._parts(value)}
        mine = kinds.pop() if len(kinds) == 1 else -1
        request = AllGather(tf.constant([mine], tf.int64), "tf_onebit/shapes")
        (everyones,) = self.engine.meet([one_request(request)], "reduce")
        everyones = set(everyones.numpy().tolist())
        if everyones == {-1} or len(everyones) > 1:
            raise ValueError(_MUST_BE_ALIKE.format(f"{value} on this worker"))

    def _parts(self, value):
        """Returns the parts of a structure on all replicas of this process: list."""
        local = self._container_strategy().experimental_local_results
        return [part for leaf in tf.nest.flatten(value) for part in local(leaf)]


def _require_one_shape(parts):
    """Raises ValueError if shapes or types differ.

    Where shapes are known only in the step, the step ends with an error instead.
    """
    first, *others = parts
    for other in others:
        if other.dtype != first.dtype or not other.shape.is_compatible_with(first.shape):
            raise ValueError(_MUST_BE_ALIKE.format(parts))
        if not (other.shape.is_fully_defined() and first.shape.is_fully_defined()):
            shapes = tf.shape(first), tf.shape(other)
            tf.debugging.assert_equal(*shapes, _MUST_BE_ALIKE.format(parts))


def _kind_of(part):
    """Returns a number for the type and shape of a value, which must be the same on all replicas.

    The value must be eager.
    """
    if isinstance(part, tf.IndexedSlices):  # whose numbers of rows may differ
        values = tf.convert_to_tensor(part.values)
        shape = values.shape[1:]
    else:
        values = tf.convert_to_tensor(part)
        shape = values.shape
    return zlib.crc32(f"{type(part).__name__} {values.dtype.name} {shape}".encode())
