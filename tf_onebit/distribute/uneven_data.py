"""Data that ends on some workers before it does on others."""

import contextlib
import threading

import tensorflow as tf

from tf_onebit._framework_internals.class_changes import become, overlay
from tf_onebit._framework_internals.keras_calls import epoch_iterator_being_made
from tf_onebit._framework_internals.keras_data import set_number_of_batches
from tf_onebit._framework_internals.keras_models import statistics_of
from tf_onebit._framework_internals.tf_datasets import (
    DistributedIterator,
    DistributedIteratorSpec,
    set_cardinality,
)
from tf_onebit._training.branches import choose
from tf_onebit.collectives.requests import AllGather, one_request

# TensorFlow makes the objects whose class changes here. Both classes must have the same memory
# layout, hence the empty `__slots__`.


def prepared(dataset, strategy):
    """Prepares a distributed dataset to end together with the datasets of the other workers.

    Returns:
        `dataset`.
    """
    cls = type(dataset)

    def iterator_of(self):
        iterator = cls.__iter__(self)
        become(iterator, _Iterator)
        return iterator

    overlay(dataset, __slots__=(), __iter__=iterator_of)
    if strategy.extended.engine.world_size > 1:
        cardinality = _common_cardinality(dataset.cardinality, strategy)
        is_infinite = cardinality == tf.data.experimental.INFINITE_CARDINALITY
        set_cardinality(dataset, cardinality, is_infinite)
        caller = epoch_iterator_being_made()
        if caller is not None:
            _count_together(caller, strategy)
    return dataset


def _count_together(epoch_iterator, strategy):
    """Sets the number of batches of all workers together in Keras' epoch iterator.

    Keras has counted the batches of this worker before it had the data distributed.
    """
    mine = epoch_iterator.data_adapter.num_batches
    unknown = tf.data.experimental.UNKNOWN_CARDINALITY
    common = _common_cardinality(unknown if mine is None else mine, strategy)
    common = None if common < 0 else common
    if common != mine:
        set_number_of_batches(epoch_iterator, common)


def _common_cardinality(cardinality, strategy):
    """Returns the common number of batches of all workers, which all of them call for."""
    mine = AllGather(tf.constant([cardinality], tf.int64), "tf_onebit/cardinality")
    (cardinalities,) = strategy.extended.engine.meet([one_request(mine)], "data")
    cardinalities = cardinalities.numpy().tolist()
    if min(cardinalities) < 0:  # infinite, or unknown
        alike = len(set(cardinalities)) == 1
        return cardinalities[0] if alike else tf.data.experimental.UNKNOWN_CARDINALITY
    return min(cardinalities) if strategy.uneven_data == "stop" else max(cardinalities)


class _Iterator(DistributedIterator):
    """Iterator that tells its strategy when TensorFlow counts the replicas with data."""

    __slots__ = ()

    @property
    def _type_spec(self):
        spec = super()._type_spec
        become(spec, _IteratorSpec)
        return spec

    def get_next(self, name=None):
        with self._counting():
            return super().get_next(name)

    def _get_next_no_partial_batch_handling(self, name=None):
        if not self._enable_get_next_as_optional:
            return super()._get_next_no_partial_batch_handling(name)
        # TensorFlow calls it when all workers must end. Those that still have data end, too.
        end = iter(tf.data.Dataset.range(0)).get_next()
        with tf.control_dependencies([end]):
            return super()._get_next_no_partial_batch_handling(name)

    def get_next_as_optional(self):
        with self._counting():
            return super().get_next_as_optional()

    @contextlib.contextmanager
    def _counting(self):
        self._strategy.extended.counts_data = True
        try:
            yield
        finally:
            self._strategy.extended.counts_data = False


class _IteratorSpec(DistributedIteratorSpec):
    __slots__ = ()
    value_type = _Iterator

    def _from_components(self, components):
        iterator = super()._from_components(components)
        become(iterator, _Iterator)
        return iterator


class _Step(threading.local):
    has_data = None


# State of the step that this thread traces: every replica has a thread of its own.
_step = _Step()


def without_effect_of_empty_batches(function, model=None):
    """Returns a function for `Strategy.run` that changes nothing if its batch is empty.

    The mean of an empty batch is NaN. It would spoil the gradients, and would stay in a model's
    BatchNormalization and metrics.

    Args:
        function: function to guard, whose first argument is the batch.
        model: Keras model whose statistics and metrics the function updates, or None.
    """

    def guarded(*args, **kwargs):
        tensors = [leaf for leaf in tf.nest.flatten(args[:1]) if _is_of_batch(leaf)]
        if not tensors:
            return function(*args, **kwargs)
        # At the end of the data there is no batch. Operations that need none, such as a counter,
        # must not run either, because they would run on some workers only.
        with tf.control_dependencies(tf.nest.flatten(tensors[0], expand_composites=True)[:1]):
            batched = next((tensor for tensor in tensors if tensor.shape.rank != 0), None)
            if batched is None or batched.shape[:1].is_fully_defined():
                return function(*args, **kwargs)
            return masked(number_of_samples(batched) > 0, *args, **kwargs)

    def masked(has_data, *args, **kwargs):
        statistics, metrics = ([], []) if model is None else _updated_by(model)
        before = [tf.identity(variable) for variable in (*statistics, *metrics)]
        _step.has_data = has_data
        try:
            outputs = function(*args, **kwargs)
        finally:
            _step.has_data = None
        # Synchronized statistics are valid even on replicas without data.
        good = [has_data | tf.math.is_finite(variable) for variable in statistics]
        good += [has_data] * len(metrics)
        for variable, is_good, value in zip((*statistics, *metrics), good, before, strict=True):
            variable.assign(tf.where(is_good, variable, value))
        return outputs

    return guarded


def _is_of_batch(leaf):
    # Slices of a gradient are not samples, and their parts may be Python lists.
    return tf.is_tensor(leaf) and not isinstance(leaf, tf.IndexedSlices)


def number_of_samples(batch):
    """Returns the length of the first dimension of a dense, sparse or ragged tensor: scalar.

    The number of values may be smaller, as in a sparse batch of zeros.
    """
    if isinstance(batch, tf.SparseTensor):
        return batch.dense_shape[0]
    if isinstance(batch, tf.RaggedTensor):
        return batch.nrows()
    return tf.shape(batch)[0]


def _updated_by(model):
    """Returns two lists of variables that a model's step updates: statistics and metrics'."""
    statistics = {id(v): v for v in statistics_of(model) if v.dtype.startswith("float")}
    return list(statistics.values()), model.metrics_variables


def data_of_step():
    """Returns whether this replica has data in the step being traced: boolean scalar, or None."""
    return _step.has_data


def zero_without_data(gradients):
    """Returns the gradients of this replica, or zeros if its batch is empty."""
    has_data = _step.has_data
    if has_data is None:
        return gradients
    return [_chosen(has_data, gradient) for gradient in gradients]


def _chosen(has_data, gradient):
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return gradient  # slices of an empty batch have no rows
    return choose(has_data, gradient, lambda: tf.zeros_like(gradient))
