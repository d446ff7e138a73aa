"""Keras' data adapters, and its iterators over the batches of an epoch."""

import contextlib

from keras.src.backend.tensorflow.trainer import TFEpochIterator
from keras.src.trainers import data_adapters
from keras.src.trainers.data_adapters import data_adapter_utils
from keras.src.trainers.data_adapters.data_adapter import DataAdapter

from tf_onebit._framework_internals.class_changes import overlay

__all__ = [
    "DataAdapter",  # keras/src/trainers/data_adapters/data_adapter.py:1, which `fit` takes as `x`
    "TFEpochIterator",  # keras/src/backend/tensorflow/trainer.py:747, which `fit` makes
    "batches_of_py_dataset",
    "distributed_data_of",
    "is_known_to_repeat",
    "set_number_of_batches",
    "spec_of_py_dataset",
]

_KNOWN_TO_REPEAT = (
    data_adapters.ArrayDataAdapter,
    data_adapters.PyDatasetAdapter,
    data_adapters.TFDatasetAdapter,
)


def distributed_data_of(epoch_iterator):
    """Returns the distributed dataset that an epoch iterator draws from.

    Relies on `TFEpochIterator._distributed_dataset`
    (keras/src/backend/tensorflow/trainer.py:756).
    """
    return epoch_iterator._distributed_dataset


def set_number_of_batches(epoch_iterator, number):
    """Sets how many batches an epoch has.

    Relies on `EpochIterator._num_batches`, which `reset` takes from the adapter's `num_batches`
    (keras/src/trainers/epoch_iterator.py:83, 100).

    Args:
        epoch_iterator: Keras' epoch iterator.
        number: number of batches, or None if it is not known.
    """
    # For adapters it is a property, which each class defines otherwise.
    overlay(epoch_iterator.data_adapter, num_batches=number)
    epoch_iterator._num_batches = number


def is_known_to_repeat(adapter):
    """Tells whether a data adapter reads the same batches again from unchanged data.

    Relies on the adapters that Keras makes of arrays, `tf.data` and `PyDataset`
    (keras/src/trainers/data_adapters/__init__.py:22).
    """
    return isinstance(adapter, _KNOWN_TO_REPEAT)


def spec_of_py_dataset(py_dataset):
    """Returns the `tf.TensorSpec` structure of a `keras.utils.PyDataset`'s batches.

    Relies on `PyDatasetAdapter._standardize_batch`, as `get_tf_dataset` does
    (keras/src/trainers/data_adapters/py_dataset_adapter.py:225, 307), and `get_tensor_spec`
    (keras/src/trainers/data_adapters/data_adapter_utils.py:229).
    """
    adapter = data_adapters.PyDatasetAdapter(py_dataset)
    return data_adapter_utils.get_tensor_spec([adapter._standardize_batch(py_dataset[0])])


def batches_of_py_dataset(py_dataset):
    """Yields the batches of one epoch of a `keras.utils.PyDataset`.

    Closing the generator stops the dataset's workers.

    Relies on `PyDatasetAdapter._get_iterator` and `enqueuer`
    (keras/src/trainers/data_adapters/py_dataset_adapter.py:280, 209).
    """
    # Makes an adapter of its own: a stopped queue would keep its batches for the next epoch.
    adapter = data_adapters.PyDatasetAdapter(py_dataset)
    try:
        yield from adapter._get_iterator()
    finally:
        if adapter.enqueuer is not None:
            # Errors in batches that are not needed do not matter.
            with contextlib.suppress(Exception):
                adapter.enqueuer.stop()
