"""Determinism of a `tf.data.Dataset`: whether it comes in the same order again."""

import tensorflow as tf

from tf_onebit._framework_internals.tf_datasets import graphs_of, reshuffles, seeds_of, sources_of


def why_not_repeatable(dataset):
    """Returns why a dataset's order differs after a restart of the program, as far as visible.

    Args:
        dataset: `tf.data.Dataset`.

    Returns:
        String with the reason, or None.
    """
    if dataset.options().deterministic is False:
        return "their tf.data options say deterministic=False"
    for operation in _random_without_seed(dataset):
        return f"{operation} has no seed. Call keras.utils.set_random_seed"
    return None


def has_shuffle(dataset, within=None):
    """Tells whether each iteration of a dataset has another order.

    Args:
        dataset: `tf.data.Dataset`.
        within: tuple of class names of datasets. Only shuffles in their inputs count.
    """
    if within is None and reshuffles(dataset):
        return True
    if within is not None and type(dataset).__name__ in within:
        within = None
    return any(has_shuffle(source, within) for source in sources_of(dataset))


def _random_without_seed(dataset):
    """Yields the names of a dataset's operations whose seeds are 0, which stands for any seed."""
    seeds = seeds_of(dataset)
    if seeds and all(map(_is_zero, seeds)):
        yield type(dataset).__name__.strip("_")
    for graph in graphs_of(dataset):
        for operation in graph.get_operations():
            seeds = _seeds_of(operation)
            if seeds and all(map(_is_zero, seeds)):
                yield operation.type
    for source in sources_of(dataset):
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
