"""The copies that a strategy keeps of a variable."""

import tensorflow as tf


def copies_of(variable):
    """The copies of a variable on the devices of this process: list of `tf.Variable`.

    Args:
        variable: of Keras or TensorFlow.
    """
    value = variable if isinstance(variable, tf.Variable) else variable.value
    if isinstance(value, tf.distribute.DistributedValues):
        return list(value.values)
    return [value]


def first_copy(scalar):
    """What `float` and `int` know of a scalar: a variable may be mirrored, by a strategy."""
    return copies_of(scalar)[0] if hasattr(scalar, "assign") else scalar


def assign_all(variable, value):
    """Gives all copies of a variable one value."""
    for copy in copies_of(variable):
        copy.assign(value)
