"""Where the state of an exchange lives."""

import contextlib

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import default_variable_creator_v2


@contextlib.contextmanager
def plain_variables(device):
    """Context in which variables are made on a device, and not by a strategy's rules.

    A strategy would make copies of them, keep these alike and save one; but every worker's
    residuals are its own.
    """

    def creator(_, **arguments):
        return default_variable_creator_v2(None, **arguments)

    with tf.device(device), tf.variable_creator_scope(creator):
        yield
