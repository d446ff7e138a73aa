"""Tells whether a `tf.data.Dataset` comes in the same order again."""

import tensorflow as tf


def why_not_repeatable(dataset):
    """What makes it come in another order when a program is started again, as far as one can see.

    Args:
        dataset: `tf.data.Dataset`.

    Returns:
        None, or a string: what it is or does.
    """
    if dataset.options().deterministic is False:
        return "their tf.data options say deterministic=False"
    for operation in _random_without_seed(dataset):
        return f"{operation} has no seed. Call keras.utils.set_random_seed"
    return None


def has_shuffle(dataset, within=None):
    """Whether each iteration of a dataset has another order.

    Args:
        dataset: `tf.data.Dataset`.
        within: tuple of names of classes of datasets: only what is behind one of these counts.
    """
    if within is None and getattr(dataset, "_reshuffle_each_iteration", False):
        return True
    if within is not None and type(dataset).__name__ in within:
        within = None
    return any(has_shuffle(source, within) for source in dataset._inputs())


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
