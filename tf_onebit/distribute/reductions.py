"""Reductions of values of all replicas, beside those of gradients."""

import tensorflow as tf

from tf_onebit.collectives.requests import AllGather, AllReduce, ask
from tf_onebit.distribute.begin_of_fit import is_asked_for_a_shape
from tf_onebit.distribute.replicas import sum_of_replicas


class ReducingExtended:
    """What the implementations of both strategies reduce in a way of their own."""

    # Whether TensorFlow is just asking how many replicas have data.
    counts_data = False

    def _reduce_to(self, reduce_op, value, destinations, options):
        # TensorFlow's own does not reduce structures, which Keras asks for.
        if tf.executing_eagerly() and not self.counts_data and is_asked_for_a_shape():
            strategy = self._container_strategy()
            return tf.nest.map_structure(
                lambda part: strategy.experimental_local_results(part)[0], value
            )

        def reduced(value):
            if tf.executing_eagerly() and not self._have_one_shape(value):
                raise ValueError(f"Values to reduce must have one shape. Received: {value}.")
            if self._is_ours([value]):
                return self._reduced(reduce_op, [value])[0]
            with self.engine.whereabouts.naming_who_left():
                return super(ReducingExtended, self)._reduce_to(
                    reduce_op, value, destinations, options
                )

        return tf.nest.map_structure(reduced, value)

    def _have_one_shape(self, value):
        """Whether a value, in eager mode, has the same shape on all replicas of all workers."""
        shapes = tf.stack([tf.shape(part) for part in parts_of(self._container_strategy(), value)])
        if self._num_workers > 1:
            request = AllGather(shapes, "tf_onebit/shapes")
            (shapes,) = self.engine.meet([ask(request)], "reduce")
        return bool(tf.reduce_all(shapes == shapes[0]))

    def _batch_reduce_to(self, reduce_op, value_destination_pairs, options):
        values = [value for value, _ in value_destination_pairs]
        if self._is_ours(values):
            return self._reduced(reduce_op, values)
        return super()._batch_reduce_to(reduce_op, value_destination_pairs, options)

    def _is_ours(self, values):
        """Whether to reduce values as gradients are: in graphs, where keys that stay matter.

        With a key for every call, as TensorFlow's own, no two steps could run in one loop, and
        each would leave some memory behind.
        """
        parts = parts_of(self._container_strategy(), values)
        dense = not any(isinstance(part, tf.IndexedSlices) for part in parts)
        return dense and (self._num_workers == 1 or not tf.executing_eagerly())

    def _reduced(self, reduce_op, values):
        columns = [self._container_strategy().experimental_local_results(v) for v in values]
        totals = [sum_of_replicas(column) for column in columns]
        if self._num_workers > 1:
            request = AllReduce(totals, f"tf_onebit/reduce_{self._numbers.next()}")
            (totals,) = self.engine.run([ask(request)])
        if reduce_op != tf.distribute.ReduceOp.MEAN:
            return totals
        replicas = len(columns[0]) * self._num_workers
        return [tf.cast(total / replicas, total.dtype) for total in totals]


def parts_of(strategy, value):
    """The tensors that the replicas of this process have, of all of a structure: list."""
    return [p for v in tf.nest.flatten(value) for p in strategy.experimental_local_results(v)]


def local_mean(strategy, value):
    """The mean over the replicas of this process alone."""
    parts = strategy.experimental_local_results(value)
    return sum_of_replicas(parts) / len(parts) if len(parts) > 1 else parts[0]
