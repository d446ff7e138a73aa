"""Data that ends on some workers before it does on others."""

import contextlib
import threading

import tensorflow as tf
from tensorflow.python.distribute import input_lib

from tf_onebit.collectives.requests import AllGather, ask

# TensorFlow makes the objects whose class is changed here; `__slots__`, because only objects of
# the same layout can change places.


def prepared(dataset, strategy):
    """A distributed dataset, made ready to end together with those of the other workers."""
    cls = type(dataset)

    def iterator_of(self):
        iterator = cls.__iter__(self)
        iterator.__class__ = _Iterator
        return iterator

    dataset.__class__ = type(cls.__name__, (cls,), {"__slots__": (), "__iter__": iterator_of})
    if strategy.extended.engine.world_size > 1:
        dataset._cardinality = _common_cardinality(dataset, strategy)
        dataset._enable_get_next_as_optional = (
            dataset._cardinality != tf.data.experimental.INFINITE_CARDINALITY
        )
    return dataset


def _common_cardinality(dataset, strategy):
    """The number of batches of all workers together: Keras counts on it."""

    mine = AllGather(tf.constant([dataset.cardinality], tf.int64), "tf_onebit/cardinality")
    (cardinalities,) = strategy.extended.engine.run([ask(mine)])
    cardinalities = cardinalities.numpy().tolist()
    if min(cardinalities) < 0:  # infinite, or unknown
        alike = len(set(cardinalities)) == 1
        return cardinalities[0] if alike else tf.data.experimental.UNKNOWN_CARDINALITY
    return min(cardinalities) if strategy.uneven_data == "stop" else max(cardinalities)


class _Iterator(input_lib.DistributedIterator):
    """Tells its strategy that what it reduces is the number of replicas with data."""

    __slots__ = ()

    @property
    def _type_spec(self):
        spec = super()._type_spec
        spec.__class__ = _IteratorSpec
        return spec

    def get_next(self, name=None):
        with self._counting():
            return super().get_next(name)

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


class _IteratorSpec(input_lib.DistributedIteratorSpec):
    __slots__ = ()
    value_type = _Iterator

    def _from_components(self, components):
        iterator = super()._from_components(components)
        iterator.__class__ = _Iterator
        return iterator


class _Step(threading.local):
    has_data = None


# Of the step that this thread traces: every replica has a thread of its own.
_step = _Step()


def without_effect_of_empty_batches(function, model=None):
    """A function for `Strategy.run` that changes nothing where its batch is empty.

    The mean of an empty batch is not a number. It would spoil the gradients, and a model's
    BatchNormalization would not forget it.

    Args:
        function: its first argument is the batch.
        model: Keras model whose statistics it updates, or None.
    """

    def guarded(*args, **kwargs):
        leaves = tf.nest.flatten(args[:1], expand_composites=True)
        tensor = next((leaf for leaf in leaves if tf.is_tensor(leaf)), None)
        if tensor is None or tensor.shape[:1].is_fully_defined():
            return function(*args, **kwargs)
        has_data = tf.size(tensor) > 0
        weights = [] if model is None else model.non_trainable_variables
        statistics = [v for v in weights if v.dtype.startswith("float")]
        before = [tf.identity(variable) for variable in statistics]
        _step.has_data = has_data
        try:
            outputs = function(*args, **kwargs)
        finally:
            _step.has_data = None
        for variable, value in zip(statistics, before, strict=True):
            variable.assign(tf.where(has_data, variable, value))
        return outputs

    return guarded


def zero_without_data(gradients):
    """The gradients of this replica, or zeros where its batch is empty."""
    has_data = _step.has_data
    if has_data is None:
        return gradients
    return [_chosen(has_data, gradient) for gradient in gradients]


def _chosen(has_data, gradient):
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return gradient  # those of an empty batch have no rows
    # A branch, which passes the gradient on, rather than a choice, which would copy it.
    return tf.cond(has_data, lambda: gradient, lambda: tf.zeros_like(gradient))
