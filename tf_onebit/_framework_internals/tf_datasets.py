"""Private parts of `tf.data.Dataset`s and of distributed datasets."""

from tensorflow.python.distribute.input_lib import DistributedIterator, DistributedIteratorSpec

__all__ = [
    "DistributedIterator",  # tensorflow/python/distribute/input_lib.py:574
    "DistributedIteratorSpec",  # tensorflow/python/distribute/input_lib.py:525
    "graphs_of",
    "local_datasets_of",
    "reshuffles",
    "seeds_of",
    "set_cardinality",
    "sources_of",
]


def sources_of(dataset):
    """Returns the input datasets of a dataset: list.

    Relies on `DatasetV2._inputs` (tensorflow/python/data/ops/dataset_ops.py:415).
    """
    return dataset._inputs()


def graphs_of(dataset):
    """Returns the graphs of the functions that a dataset calls, for example in `map`: list.

    Relies on `DatasetV2._functions` (tensorflow/python/data/ops/dataset_ops.py:430).
    """
    return [wrapper.function.graph for wrapper in dataset._functions()]


def seeds_of(dataset):
    """Returns the two seeds of a dataset that is itself random, such as `shuffle`: tuple, or None.

    Relies on `_seed` and `_seed2` (tensorflow/python/data/ops/shuffle_op.py:51, random_op.py:44).
    """
    return (dataset._seed, dataset._seed2) if hasattr(dataset, "_seed2") else None


def reshuffles(dataset):
    """Tells whether a dataset is a `shuffle` whose order differs from iteration to iteration.

    Relies on `_reshuffle_each_iteration` (tensorflow/python/data/ops/shuffle_op.py:52).
    """
    return bool(getattr(dataset, "_reshuffle_each_iteration", False))


def local_datasets_of(distributed):
    """Returns the `tf.data` datasets of this process behind a distributed dataset: list.

    Relies on `DistributedDatasetsFromFunction._datasets` and `DistributedDataset._original_dataset`
    (tensorflow/python/distribute/input_lib.py:1154, 801).
    """
    if hasattr(distributed, "_datasets"):
        return distributed._datasets
    return [distributed._original_dataset]


def set_cardinality(distributed, cardinality, is_infinite):
    """Sets the number of batches of a distributed dataset, the same on all workers.

    Unless it is infinite, its iterators ask all workers before each batch whether data remain.

    Relies on `_cardinality` and `_enable_get_next_as_optional`
    (tensorflow/python/distribute/input_lib.py:816, 1157).
    """
    distributed._cardinality = cardinality
    distributed._enable_get_next_as_optional = not is_infinite
