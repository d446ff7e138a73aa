"""Update rules of Keras optimizers, each as one compiled op. Without noise it has the same bits.

Keras moves moments and computes an update in about ten ops, each of which passes over memory. Here
one pass does it, in the memory of the gradient.
"""

import numbers

import keras
import numpy as np
import tensorflow as tf

from tf_onebit import ops
from tf_onebit._framework_internals.keras_optimizers import (
    moments_for,
    update_rule_of,
    velocity_for,
)
from tf_onebit._framework_internals.tf_variables import value_of


def compiled_update(optimizer, gradient, variable, learning_rate, noise=0.0):
    """Returns the update that an optimizer would add to a variable, and moves its moments.

    Gradients that are not finite do not reach the moments. Their updates are not finite either.

    Args:
        optimizer: Keras optimizer.
        gradient: dense tensor.
        variable: `tf.Variable`.
        learning_rate: scalar tensor.
        noise: float32 scalar. Where the optimizer averages squares, they are those of a gradient
            without this part of the noise: see `Exchange`.

    Returns:
        float32 tensor like the gradient. None if there is no op for this optimizer or variable.
    """
    rule = _rule_of(optimizer)
    if rule is None or variable.dtype != tf.float32:
        return None
    gradient, learning_rate = (tf.cast(t, tf.float32) for t in (gradient, learning_rate))
    return rule(optimizer, gradient, variable, learning_rate, noise)


def _rule_of(optimizer):
    """Returns the function that stands for an optimizer's update rule, or None."""
    rule = update_rule_of(optimizer)
    if rule is keras.optimizers.SGD.update_step:
        # Some momenta below 1 are 1 in float32.
        return _momentum if 0 < np.float32(optimizer.momentum) < 1 else None
    if rule is keras.optimizers.Adam.update_step:
        # A program may have made them variables, which change during training.
        settings = optimizer.beta_1, optimizer.beta_2, optimizer.epsilon
        are_numbers = all(isinstance(setting, numbers.Real) for setting in settings)
        return _adam if are_numbers and not optimizer.amsgrad else None
    return None


def _momentum(optimizer, gradient, variable, learning_rate, _):
    velocity = value_of(velocity_for(optimizer, variable))
    momentum, nesterov = float(optimizer.momentum), bool(optimizer.nesterov)
    return ops.momentum(gradient, velocity, momentum, nesterov, -learning_rate)


def _adam(optimizer, gradient, variable, learning_rate, noise):
    average, square = map(value_of, moments_for(optimizer, variable))
    beta_1, beta_2 = float(optimizer.beta_1), float(optimizer.beta_2)
    # As Keras computes it, step by step.
    steps = getattr(optimizer, "steps_of_moments", lambda: optimizer.iterations)()
    earlier = tf.cast(steps, tf.float32)
    steps = tf.cast(steps + 1, tf.float32)
    powers = [tf.pow(tf.constant(beta, tf.float32), steps) for beta in (beta_1, beta_2)]
    factor = -(learning_rate * tf.sqrt(1 - powers[1]) / (1 - powers[0]))
    # The average of earlier gradients has weights that add up to `weight`. With the noise of its
    # own, it makes a deviation 2 (1 - beta_1^t) / ((1 + beta_1) weight) as large, squared.
    weight = 1 - tf.pow(tf.constant(beta_1, tf.float32), earlier)
    noise = noise * (1 + beta_1) / 2 * weight / (1 - powers[0])
    if beta_1**2 >= beta_2:  # the average could be large where squares have been forgotten
        noise = 0.0
    return ops.adam(
        gradient,
        average,
        square,
        factor,
        beta_1,
        beta_2,
        float(optimizer.epsilon),
        noise,
        tf.math.divide_no_nan(1.0, weight),
    )
