"""Variables as strategies keep them, and as nobody does."""

import contextlib

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import default_variable_creator_v2


def copies_of(variable):
    """Returns the copies of a variable on the devices of this process: list of `tf.Variable`.

    Relies on the `values` of what a strategy has mirrored
    (tensorflow/python/distribute/values.py:227, 366).

    Args:
        variable: of Keras or TensorFlow.
    """
    value = variable if isinstance(variable, tf.Variable) else variable.value
    if isinstance(value, tf.distribute.DistributedValues):
        return list(value.values)
    return [value]


def first_copy(scalar):
    """Returns a scalar for `float` and `int`, which know no variable that a strategy mirrors."""
    return copies_of(scalar)[0] if hasattr(scalar, "assign") else scalar


def assign_all(variable, value):
    """Gives all copies of a variable one value."""
    for copy in copies_of(variable):
        copy.assign(value)


def on_device(device):
    """Returns the context of a device: that of the context around, where it is None."""
    return contextlib.nullcontext() if device is None else tf.device(device)


@contextlib.contextmanager
def plain_variables(device=None):
    """Context in which variables are made on a device, and by nobody's rules.

    A strategy would make copies of them, keep these alike and save one; but every worker's
    residuals are its own. A `tf.function` that is being traced would take them for its own, and be
    traced a second time, to have a graph that makes none.

    Relies on `default_variable_creator_v2`
    (tensorflow/python/ops/resource_variable_ops.py:340).

    Args:
        device: str. Default: that of the context around.
    """

    def creator(_, **arguments):
        return default_variable_creator_v2(None, **arguments)

    with on_device(device), tf.variable_creator_scope(creator):
        yield
