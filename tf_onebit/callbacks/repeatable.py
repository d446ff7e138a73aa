"""Whether data come in the same order again when a program is started again."""

import tensorflow as tf
from keras.src.trainers import data_adapters

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
        if dataset.options().deterministic is False:
            return "their tf.data options say deterministic=False"
        for operation in _random_without_seed(dataset):
            return f"{operation} has no seed. Call keras.utils.set_random_seed"
    return None


def _datasets(dataset):
    """The `tf.data` of this process behind what a strategy may have made of it."""
    if not isinstance(dataset, tf.distribute.DistributedDataset):
        return [dataset]
    # One that a function made, or not.
    return dataset._datasets if hasattr(dataset, "_datasets") else [dataset._original_dataset]


def _random_without_seed(dataset):
    """Yields the names of operations in a dataset whose seeds are 0, which stands for any."""
    if hasattr(dataset, "_seed2") and _is_zero(dataset._seed) and _is_zero(dataset._seed2):
        yield type(dataset).__name__.strip("_")
    for wrapper in dataset._functions():
        for operation in wrapper.function.graph.get_operations():
            seeds = _seeds_of(operation)
            if seeds and all(map(_is_zero, seeds)):
                yield operation.type
    for source in dataset._inputs():
        yield from _random_without_seed(source)


def _seeds_of(operation):
    names = [argument.name for argument in operation.op_def.input_arg]
    if "seed2" in names:
        return [operation.inputs[names.index(name)] for name in ("seed", "seed2")]
    if "seed2" in operation.node_def.attr:
        return [operation.get_attr(name) for name in ("seed", "seed2")]
    return []


def _is_zero(seed):
    value = tf.get_static_value(seed) if tf.is_tensor(seed) else seed
    return value is not None and int(value) == 0
