"""Private parts of Keras variables, and of layers that hold them."""

import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.backend.common.symbolic_scope import in_symbolic_scope

from tf_onebit._framework_internals.tf_variables import plain_variables


def replace_value(variable, value, place=None):
    """Replaces the `tf.Variable` within a Keras variable, which may have another shape.

    Layers and optimizers keep their variable, its name and its place among their variables.

    Relies on `Variable._value` and `_shape`
    (keras/src/backend/common/variables.py:144; keras/src/backend/tensorflow/core.py:37).

    Args:
        variable: Keras variable.
        value: `tf.Variable`, or a tensor for a new one.
        place: context in which to make a new one. Default: a plain variable.

    Returns:
        The `tf.Variable` that was there before.
    """
    before = variable._value
    if not isinstance(value, tf.Variable):
        with tf.init_scope(), place or plain_variables():
            value = tf.Variable(
                value,
                dtype=before.dtype,
                trainable=variable.trainable,
                name=variable.name,
                synchronization=before.synchronization,
                aggregation=before.aggregation,
            )
    variable._value = value
    variable._shape = variable._validate_shape(value.shape)
    return before


def is_in_call():
    """Tells whether a Keras layer or model is being called.

    Relies on the call context that `Layer.__call__` sets (keras/src/layers/layer.py:1679).
    """
    return global_state.get_global_attribute("current_call_ctx") is not None


def is_in_symbolic_call():
    """Tells whether Keras calls layers only for the shapes and types of their outputs.

    Relies on `SymbolicScope` (keras/src/backend/tensorflow/core.py:223).
    """
    return in_symbolic_scope()
