"""Data that ends on some workers before it does on others."""

import contextlib
import threading

import tensorflow as tf
from keras.src.trainers.epoch_iterator import EpochIterator
from tensorflow.python.distribute import input_lib

from tf_onebit.collectives.requests import AllGather, one_request
from tf_onebit.training.frames import calling_method

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
        dataset._cardinality = _common_cardinality(dataset.cardinality, strategy)
        dataset._enable_get_next_as_optional = (
            dataset._cardinality != tf.data.experimental.INFINITE_CARDINALITY
        )
        caller = _calling_epoch_iterator()
        if caller is not None:
            _count_together(caller, strategy)
    return dataset


def _count_together(epoch_iterator, strategy):
    """Keras has counted the batches of this worker before it had the data distributed."""
    mine = epoch_iterator.data_adapter.num_batches
    unknown = tf.data.experimental.UNKNOWN_CARDINALITY
    common = _common_cardinality(unknown if mine is None else mine, strategy)
    common = None if common < 0 else common
    if common != mine:
        adapter = epoch_iterator.data_adapter
        cls = type(adapter)
        adapter.__class__ = type(cls.__name__, (cls,), {"num_batches": common})
        epoch_iterator._num_batches = common


def _calling_epoch_iterator():
    """The Keras `EpochIterator` that has its data distributed, or None."""
    frame = calling_method("__init__", lambda owner: isinstance(owner, EpochIterator))
    return None if frame is None else frame.f_locals["self"]


def _common_cardinality(cardinality, strategy):
    """The number of batches of all workers together."""
    mine = AllGather(tf.constant([cardinality], tf.int64), "tf_onebit/cardinality")
    (cardinalities,) = strategy.extended.engine.meet([one_request(mine)], "data")
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

    def _get_next_no_partial_batch_handling(self, name=None):
        if not self._enable_get_next_as_optional:
            return super()._get_next_no_partial_batch_handling(name)
        # Called because all must end, which some have more data than others for.
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
    BatchNormalization and metrics would not forget it.

    Args:
        function: its first argument is the batch.
        model: Keras model whose statistics and metrics it updates, or None.
    """

    def guarded(*args, **kwargs):
        tensors = [leaf for leaf in tf.nest.flatten(args[:1]) if _is_of_batch(leaf)]
        if not tensors:
            return function(*args, **kwargs)
        # Where the data end there is no batch. What does not need one, like a counter, must not
        # be done either: on some workers it would be, and on others not.
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
        # Synchronized statistics are right also where there is no data.
        good = [has_data | tf.math.is_finite(variable) for variable in statistics]
        good += [has_data] * len(metrics)
        for variable, is_good, value in zip((*statistics, *metrics), good, before, strict=True):
            variable.assign(tf.where(is_good, variable, value))
        return outputs

    return guarded


def _is_of_batch(leaf):
    # Slices of a gradient are no samples, and their parts may be Python lists.
    return tf.is_tensor(leaf) and not isinstance(leaf, tf.IndexedSlices)


def number_of_samples(batch):
    """The length of the first dimension of a dense, sparse or ragged tensor: scalar.

    Not the number of values: samples may have none, as in a sparse batch of zeros.
    """
    if isinstance(batch, tf.SparseTensor):
        return batch.dense_shape[0]
    if isinstance(batch, tf.RaggedTensor):
        return batch.nrows()
    return tf.shape(batch)[0]


def _updated_by(model):
    """What a step of a Keras model updates beside its weights: statistics, metrics' variables."""
    # Not `non_trainable_variables`, which are all weights of frozen layers as well.
    of_layers = (v for layer in model._flatten_layers() for v in layer._non_trainable_variables)
    statistics = {id(v): v for v in of_layers if v.dtype.startswith("float")}
    return list(statistics.values()), model.metrics_variables


def data_of_step():
    """Whether this replica has data in the step that is being traced: boolean scalar, or None."""
    return _step.has_data


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
