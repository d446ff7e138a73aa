"""Private parts of Keras variables, and of layers that hold them."""

import tensorflow as tf
from keras.src.backend.common import global_state

from tf_onebit._framework_internals.tf_variables import plain_variables


def replace_value(variable, value):
    """Replaces the `tf.Variable` within a Keras variable, which may have another shape.

    Layers and optimizers keep their variable, its name and its place among their variables.

    Relies on `Variable._value` and `_shape`
    (keras/src/backend/common/variables.py:144; keras/src/backend/tensorflow/core.py:37).

    Args:
        variable: Keras variable.
        value: `tf.Variable`, or a tensor for a new one.

    Returns:
        The `tf.Variable` that was there before.
    """
    before = variable._value
    if not isinstance(value, tf.Variable):
        with tf.init_scope(), plain_variables():
            value = tf.Variable(
                value, dtype=before.dtype, trainable=variable.trainable, name=variable.name
            )
    variable._value = value
    variable._shape = variable._validate_shape(value.shape)
    return before


def is_in_call():
    """Tells whether a Keras layer or model is being called.

    Relies on the call context that `Layer.__call__` sets (keras/src/layers/layer.py:1679).
    """
    return global_state.get_global_attribute("current_call_ctx") is not None
