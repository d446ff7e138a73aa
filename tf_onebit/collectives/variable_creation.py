"""Creation of the variables that hold the state of an exchange."""

import contextlib

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import default_variable_creator_v2


def on_device(device):
    """Context of a device: that of the context around, where it is None."""
    return contextlib.nullcontext() if device is None else tf.device(device)


@contextlib.contextmanager
def plain_variables(device=None):
    """Context in which variables are made on a device, and by nobody's rules.

    A strategy would make copies of them, keep these alike and save one; but every worker's
    residuals are its own. A `tf.function` that is being traced would take them for its own, and be
    traced a second time, to have a graph that makes none.

    Args:
        device: str. Default: that of the context around.
    """

    def creator(_, **arguments):
        return default_variable_creator_v2(None, **arguments)

    with on_device(device), tf.variable_creator_scope(creator):
        yield
