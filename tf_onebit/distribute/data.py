"""Data that ends on some workers before it does on others."""

import contextlib

import tensorflow as tf
from tensorflow.python.distribute import input_lib

from tf_onebit.collectives.requests import AllGather


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

    def gathered():
        mine = tf.constant([dataset.cardinality], tf.int64)
        return (yield AllGather(mine, "tf_onebit/cardinality"))

    (cardinalities,) = strategy.extended.engine.run([gathered()])
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


def keeping_statistics(step, model):
    """A step of a Keras model that leaves statistics as they are on replicas without data.

    The mean of an empty batch is not a number, and BatchNormalization would not forget it.
    """

    def kept(data, *args):
        sizes = [tf.shape(leaf)[0] for leaf in tf.nest.flatten(data, expand_composites=True)]
        statistics = [v for v in model.non_trainable_variables if v.dtype.startswith("float")]
        if not sizes or not statistics:
            return step(data, *args)
        before = [tf.identity(variable) for variable in statistics]
        outputs = step(data, *args)
        for variable, value in zip(statistics, before, strict=True):
            variable.assign(tf.where(sizes[0] > 0, variable, value))
        return outputs

    return kept
