"""Update rules of Keras optimizers, each as one compiled op with the same bits.

Keras moves moments and computes an update in about ten ops, each of which passes over memory. Here
one pass does it, in the memory of the gradient.
"""

import keras
import tensorflow as tf

from tf_onebit import ops
from tf_onebit._framework_internals.keras_optimizers import (
    moments_for,
    update_rule_of,
    velocity_for,
)
from tf_onebit._framework_internals.tf_variables import value_of


def compiled_update(optimizer, gradient, variable, learning_rate):
    """Returns the update that an optimizer would add to a variable, and moves its moments.

    Gradients that are not finite do not reach the moments. Their updates are not finite either.

    Args:
        optimizer: Keras optimizer.
        gradient: dense tensor.
        variable: `tf.Variable`.
        learning_rate: scalar tensor.

    Returns:
        float32 tensor like the gradient. None if there is no op for this optimizer or variable.
    """
    if variable.dtype != tf.float32:
        return None
    gradient = tf.cast(gradient, tf.float32)
    rule, learning_rate = update_rule_of(optimizer), tf.cast(learning_rate, tf.float32)
    if rule is keras.optimizers.SGD.update_step and 0 < optimizer.momentum < 1:
        return _momentum(optimizer, gradient, variable, learning_rate)
    if rule is keras.optimizers.Adam.update_step and not optimizer.amsgrad:
        return _adam(optimizer, gradient, variable, learning_rate)
    return None


def _momentum(optimizer, gradient, variable, learning_rate):
    velocity = value_of(velocity_for(optimizer, variable))
    momentum, nesterov = float(optimizer.momentum), bool(optimizer.nesterov)
    return ops.momentum(gradient, velocity, momentum, nesterov, -learning_rate)


def _adam(optimizer, gradient, variable, learning_rate):
    average, square = map(value_of, moments_for(optimizer, variable))
    beta_1, beta_2 = float(optimizer.beta_1), float(optimizer.beta_2)
    # As Keras computes it, step by step.
    steps = getattr(optimizer, "steps_of_moments", lambda: optimizer.iterations)()
    steps = tf.cast(steps + 1, tf.float32)
    powers = [tf.pow(tf.constant(beta, tf.float32), steps) for beta in (beta_1, beta_2)]
    factor = -(learning_rate * tf.sqrt(1 - powers[1]) / (1 - powers[0]))
    return ops.adam(gradient, average, square, factor, beta_1, beta_2, float(optimizer.epsilon))
