"""Copies of variables under strategies, and plain variables outside of their control."""

import contextlib

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import default_variable_creator_v2


class SomeCopies:
    """Variable of which only some of the copies count. Other attributes are the variable's.

    Args:
        variable: Keras variable.
        copies: list of its copies that count.
    """

    def __init__(self, variable, copies):
        self._variable = variable
        self.copies = copies

    def __getattr__(self, name):
        return getattr(self._variable, name)


def copies_of(variable):
    """Returns the copies of a variable on the devices of this process: list of `tf.Variable`.

    Relies on the `values` of mirrored variables (tensorflow/python/distribute/values.py:227, 366).

    Args:
        variable: Keras or TensorFlow variable, or `SomeCopies`.
    """
    if isinstance(variable, SomeCopies):
        return variable.copies
    value = value_of(variable)
    if isinstance(value, tf.distribute.DistributedValues):
        return list(value.values)
    return [value]


def value_of(variable):
    """Returns the `tf.Variable` of a Keras or TensorFlow variable."""
    return variable if isinstance(variable, tf.Variable) else variable.value


def copies_by_device(variables):
    """Returns lists of the copies of variables, one for each device of this process.

    Args:
        variables: list of variables as in `copies_of`, with as many copies each.
    """
    return list(zip(*map(copies_of, variables), strict=True))


def first_copy(scalar):
    """Returns the first copy of a scalar, because `float` and `int` reject mirrored variables.

    Other scalars come back as they are.
    """
    return copies_of(scalar)[0] if hasattr(scalar, "assign") else scalar


def assign_all(variable, value):
    """Assigns one value to all copies of a variable."""
    for copy in copies_of(variable):
        copy.assign(value)


def on_device(device):
    """Returns a context manager for a device, or for no change if it is None."""
    return contextlib.nullcontext() if device is None else tf.device(device)


@contextlib.contextmanager
def plain_variables(device=None):
    """Makes variables in the context plain ones on a device, without strategy or `tf.function`.

    A strategy would copy them, keep the copies equal and save one. But every worker has residuals
    of its own. A `tf.function` being traced would own the variables, and would need a second trace,
    whose graph makes no variables.

    Relies on `default_variable_creator_v2`
    (tensorflow/python/ops/resource_variable_ops.py:340).

    Args:
        device: name of the device. Default: the device of the surrounding context.
    """

    def creator(_, **arguments):
        return default_variable_creator_v2(None, **arguments)

    with on_device(device), tf.variable_creator_scope(creator):
        yield
