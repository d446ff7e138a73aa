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


def assign_all(variable, value):
    """Gives all copies of a variable one value."""
    for copy in copies_of(variable):
        copy.assign(value)
