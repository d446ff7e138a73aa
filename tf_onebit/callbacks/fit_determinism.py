"""Tells whether the data of a `fit` come in the same order when a program is started again."""

import tensorflow as tf
from keras.src.trainers import data_adapters

from tf_onebit.data import determinism

_REPEATABLE = (
    data_adapters.ArrayDataAdapter,
    data_adapters.PyDatasetAdapter,
    data_adapters.TFDatasetAdapter,
)


def why_not_repeatable(epoch_iterator):
    """What makes the data of a `model.fit` come in another order each time, as far as one can see.

    Args:
        epoch_iterator: Keras' own.

    Returns:
        None, or a string: what they are or do.
    """
    adapter = epoch_iterator.data_adapter
    if not isinstance(adapter, _REPEATABLE):
        return f"they come through a {type(adapter).__name__}"
    for dataset in _datasets(epoch_iterator._distributed_dataset):
        reason = determinism.why_not_repeatable(dataset)
        if reason is not None:
            return reason
    return None


def _datasets(dataset):
    """The `tf.data` of this process behind what a strategy may have made of it."""
    if not isinstance(dataset, tf.distribute.DistributedDataset):
        return [dataset]
    # One that a function made, or not.
    return dataset._datasets if hasattr(dataset, "_datasets") else [dataset._original_dataset]
