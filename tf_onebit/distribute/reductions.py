"""Reductions of values of all replicas, beside those of gradients."""

import zlib

import tensorflow as tf
from keras.src.backend.tensorflow import trainer
from tensorflow.python.distribute import distribute_utils, values_util

from tf_onebit.collectives.requests import AllGather, AllReduce, one_request
from tf_onebit.distribute.replicas import sum_of_replicas
from tf_onebit.training.frames import caller_from_outside

_MUST_BE_ALIKE = (
    "Values to reduce must have one shape and one type on all replicas of all workers. Received: "
    "{}. Pad them, or reduce them along the axis in which they differ, too: "
    "strategy.reduce(..., axis=0)."
)


class Reducing:
    """Reductions that both strategies answer in a way of their own."""

    def reduce(self, reduce_op, value, axis):
        local = self.experimental_local_results
        if _is_asked_by_keras("_maybe_symbolic_build"):
            # Keras only looks at shapes and types. Those of the first batch may differ.
            return tf.nest.map_structure(lambda part: local(part)[0], value)
        if _is_asked_by_keras("_reduce") and all(part.shape.rank == 0 for part in local(value)):
            # Keras asks for every metric in every step, along an axis that scalars do not have. It
            # gets that of this worker, for nothing; those of an epoch are over all workers.
            return sum_of_replicas(local(value)) / len(local(value))
        return super().reduce(reduce_op, value, axis)


def _is_asked_by_keras(function):
    """Whether it is that function of Keras' that has called a strategy."""
    caller = caller_from_outside()
    return caller.f_code.co_name == function and caller.f_globals is vars(trainer)


class ReducingExtended:
    """Reductions that the implementations of both strategies make in a way of their own."""

    # Whether TensorFlow is just asking how many replicas have data.
    counts_data = False

    def _reduce_to(self, reduce_op, value, destinations, options):
        # TensorFlow's own, of several workers, does not reduce structures.
        def reduced(part):
            return self._reduce_one(reduce_op, part, destinations, options)

        return tf.nest.map_structure(reduced, value)

    def _reduce_one(self, reduce_op, value, destinations, options):
        is_of_replicas = isinstance(value, tf.distribute.DistributedValues)
        is_between_workers = self._num_workers > 1 and not distribute_utils.is_mirrored(value)
        if (is_between_workers or is_of_replicas) and self._is_ours([value]):
            return self._reduced(reduce_op, [value])[0]
        if is_between_workers and tf.executing_eagerly():
            self._require_one_shape_on_workers(value)
        with self.engine.whereabouts.naming_who_left():
            return super()._reduce_to(reduce_op, value, destinations, options)

    def _batch_reduce_to(self, reduce_op, value_destination_pairs, options):
        values = [self._on_each_device(value) for value, _ in value_destination_pairs]
        if self._is_ours(values):
            return self._reduced(reduce_op, values)
        destinations = [destination for _, destination in value_destination_pairs]
        pairs = list(zip(values, destinations, strict=True))
        return super()._batch_reduce_to(reduce_op, pairs, options)

    def _on_each_device(self, value):
        """A value of all replicas, also where it is one object on all, and came only once."""
        if isinstance(value, tf.distribute.DistributedValues):
            return value
        return distribute_utils.regroup((value,) * len(self._devices), always_wrap=True)

    def _is_ours(self, values):
        """Whether to reduce values as gradients are: in graphs, where keys that stay matter.

        With a key for every call, as TensorFlow's own, no two steps could run in one loop, and
        each would leave some memory behind.
        """
        if any(map(distribute_utils.is_mirrored, values)):
            return False
        dense = not any(isinstance(part, tf.IndexedSlices) for part in self._parts(values))
        return dense and (self._num_workers == 1 or not tf.executing_eagerly())

    def _reduced(self, reduce_op, values):
        columns = [[tf.convert_to_tensor(part) for part in self._parts(value)] for value in values]
        for column in columns:
            _require_one_shape(column)
        totals = [sum_of_replicas(column) for column in columns]
        if self._num_workers > 1:
            values_util.mark_as_unsaveable()  # what others must take part in
            request = AllReduce(totals, f"tf_onebit/reduce_{self._numbers.next()}")
            (totals,) = self.engine.run([one_request(request)])
        if reduce_op != tf.distribute.ReduceOp.MEAN:
            return totals
        return [
            total / (len(column) * self._num_workers)
            for total, column in zip(totals, columns, strict=True)
        ]

    def _require_one_shape_on_workers(self, value):
        """Raises ValueError, on all workers alike, if a value differs between any two replicas."""
        kinds = {_kind_of(part) for part in self._parts(value)}
        mine = kinds.pop() if len(kinds) == 1 else -1
        request = AllGather(tf.constant([mine], tf.int64), "tf_onebit/shapes")
        (everyones,) = self.engine.meet([one_request(request)], "reduce")
        everyones = set(everyones.numpy().tolist())
        if everyones == {-1} or len(everyones) > 1:
            raise ValueError(_MUST_BE_ALIKE.format(f"{value} on this worker"))

    def _parts(self, value):
        """The parts that the replicas of this process have, of all of a structure: list."""
        local = self._container_strategy().experimental_local_results
        return [part for leaf in tf.nest.flatten(value) for part in local(leaf)]


def _require_one_shape(parts):
    """Raises ValueError or, where shapes are known in a step only, has that end with an error."""
    first, *others = parts
    for other in others:
        if other.dtype != first.dtype or not other.shape.is_compatible_with(first.shape):
            raise ValueError(_MUST_BE_ALIKE.format(parts))
        if not (other.shape.is_fully_defined() and first.shape.is_fully_defined()):
            shapes = tf.shape(first), tf.shape(other)
            tf.debugging.assert_equal(*shapes, _MUST_BE_ALIKE.format(parts))


def _kind_of(part):
    """A number for the type and shape that a value, in eager mode, must have on all replicas."""
    if isinstance(part, tf.IndexedSlices):  # of which each may have another number
        values = tf.convert_to_tensor(part.values)
        shape = values.shape[1:]
    else:
        values = tf.convert_to_tensor(part)
        shape = values.shape
    return zlib.crc32(f"{type(part).__name__} {values.dtype.name} {shape}".encode())
