"""Values of variables: their changes, their means, and arrays to save."""

import numpy as np
import tensorflow as tf

from tf_onebit import ops
from tf_onebit._framework_internals.tf_variables import copies_of


def differences(variables, begins, deltas, look_ahead, weight, before):
    """Computes weighted changes of variables, one after another, the smallest first.

    So sending begins at once. Without an order it would begin when all differences are ready.

    Args:
        variables, begins, deltas: lists of variables. Entries of `deltas` may be None.
        look_ahead, weight: numbers, as in `ops.block_difference`.
        before: list of tensors to wait for.

    Returns:
        List of the changes, and a list with the last one that is computed.
    """
    changes = [None] * len(variables)
    for i in sorted(range(len(variables)), key=lambda i: variables[i].shape.num_elements()):
        delta = [] if deltas[i] is None else [deltas[i]]
        with tf.control_dependencies(before):
            (changes[i],) = ops.block_difference(
                [variables[i]], [begins[i]], delta, weight, look_ahead
            )
        before = [changes[i]]
    return changes, before


def scaled(values, factor):
    """Multiplies tensors by a float64 scalar. With 0 they may be anything, NaN included."""
    return tf.case(
        [
            (factor == 1, lambda: [tf.identity(value) for value in values]),
            (factor == 0, lambda: [tf.zeros_like(value) for value in values]),
        ],
        default=lambda: [tf.cast(factor, value.dtype) * value for value in values],
        strict=True,  # otherwise a list of one tensor becomes the tensor
    )


def moved_on(average, then, now):
    """Returns an average of values of `then`, moved on by the way from `then` to `now`.

    The result is between `average` and `now`. So what was never negative stays so.
    """
    moved = average + (now - then)
    return tf.clip_by_value(moved, tf.minimum(average, now), tf.maximum(average, now))


def first_copies(variables):
    """Returns the first copy of each variable: list of `tf.Variable`."""
    return [copies_of(variable)[0] for variable in variables]


def state_like(variable):
    """Returns a variable of zeros to keep state of another in."""
    return tf.Variable(tf.zeros(variable.shape, state_type(variable)), trainable=False)


def state_type(tensor):
    """Returns the type that state is kept in, of at least 32 bits."""
    return tf.float64 if tensor.dtype == tf.float64 else tf.float32


def assign_each(variables, values):
    """Assigns values to variables, with the variables' types."""
    for variable, value in zip(variables, values, strict=True):
        variable.assign(tf.cast(value, variable.dtype))


def mean_of_copies(variable):
    """Returns the mean of a variable's copies on the devices of this process: tensor."""
    copies = copies_of(variable)
    return tf.identity(copies[0]) if len(copies) == 1 else tf.add_n(copies) / len(copies)


def mean_of_arrays(arrays):
    """Returns the mean of a list of arrays of one type, with that type."""
    if len(arrays) == 1:
        return arrays[0]
    return np.mean(arrays, axis=0, dtype=np.float64).astype(arrays[0].dtype)
