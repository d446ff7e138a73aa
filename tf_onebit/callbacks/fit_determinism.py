"""The check whether the data of a `fit` come in the same order when a program starts again."""

import tensorflow as tf

from tf_onebit._framework_internals.keras_data import distributed_data_of, is_known_to_repeat
from tf_onebit._framework_internals.tf_datasets import local_datasets_of
from tf_onebit.data import determinism


def why_not_repeatable(epoch_iterator):
    """Finds why the data of a `model.fit` may come in another order each time.

    Args:
        epoch_iterator: Keras' own epoch iterator.

    Returns:
        The reason as a string, or None if the order is known to repeat.
    """
    adapter = epoch_iterator.data_adapter
    if not is_known_to_repeat(adapter):
        return f"they come through a {type(adapter).__name__}"
    for dataset in _datasets(distributed_data_of(epoch_iterator)):
        reason = determinism.why_not_repeatable(dataset)
        if reason is not None:
            return reason
    return None


def _datasets(dataset):
    """Returns this process's `tf.data` datasets behind a dataset that a strategy distributes."""
    is_distributed = isinstance(dataset, tf.distribute.DistributedDataset)
    return local_datasets_of(dataset) if is_distributed else [dataset]
