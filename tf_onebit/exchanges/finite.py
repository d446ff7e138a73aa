"""Finding gradients that are not finite."""

import tensorflow as tf

from tf_onebit.collectives.requests import AllReduce

# How the error begins that a step ends in on all workers.
NOT_FINITE = "Gradients must be finite."


def values_of(gradient):
    """The tensor of a gradient's values, of `tf.IndexedSlices` those that it has."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def not_finite_flag(gradients):
    """0, or 1 + the index of the first gradient with a value that is not finite: int32 `[]`."""
    values = [values_of(gradient) for gradient in gradients]
    # A sum that is finite has only finite terms, and takes half as long as looking at each.
    sums_are_finite = tf.stack([tf.math.is_finite(tf.reduce_sum(v)) for v in values])
    none = tf.constant(0)
    return tf.cond(tf.reduce_all(sums_are_finite), lambda: none, lambda: _first_not_finite(values))


def _first_not_finite(values):
    finite = tf.stack([tf.reduce_all(tf.math.is_finite(v)) for v in values])
    first = tf.argmin(tf.cast(finite, tf.int32), output_type=tf.int32)
    return tf.where(tf.reduce_all(finite), 0, 1 + first)


def with_overflow(flags, exchanged):
    """Flags of the workers, or that of the result on all of them: finite values may overflow.

    Args:
        flags: int32 `[world_size]`, of the workers' own gradients.
        exchanged: list of tensors or `tf.IndexedSlices`, the same on all workers.
    """
    return tf.where(tf.reduce_any(flags > 0), flags, not_finite_flag(exchanged))


def with_narrow_overflow(flags, exchanged):
    """As `with_overflow`, where it may happen to a few values: in 16 bits."""
    narrow = any(tensor.dtype.size < tf.float32.size for tensor in exchanged)
    return with_overflow(flags, exchanged) if narrow else flags


def all_finite(gradients, name):
    """Generator: whether all gradients of all workers are finite. The same on all workers."""
    flag = tf.minimum(not_finite_flag(gradients), 1)
    (failures,) = yield AllReduce([flag], name)
    return tf.equal(failures, 0)


def require_finite(gradients, flags, names, awaited=()):
    """The gradients, behind a check that no worker met a value that is not finite.

    Args:
        gradients: list of tensors or `tf.IndexedSlices`.
        flags: int32 `[world_size]`; entry k is 0, or 1 + the index in `names` of the gradient in
            which rank k met such a value.
        names: list of the variables' names.
        awaited: list of tensors that an error waits for, and gradients do not.

    Raises:
        InvalidArgumentError: on all workers, when the graph runs.
    """
    rank = tf.argmax(tf.cast(flags > 0, tf.int32))
    name = tf.gather(tf.constant(["", *names]), flags[rank])
    who = tf.where(
        tf.reduce_all(flags > 0),
        "All ranks",
        tf.strings.join(["Rank ", tf.strings.as_string(rank)]),
    )
    message = tf.strings.join(
        [
            f"{NOT_FINITE} ",
            who,
            " met an infinity or NaN in the gradient of '",
            name,
            "'. Lower the learning rate or clip the inputs. All workers leave out such steps "
            "together with tf_onebit.horovod.DistributedOptimizer(..., on_nonfinite='skip'), or in "
            "the scope of a strategy with keras.optimizers.LossScaleOptimizer.",
        ]
    )

    def fail():
        with tf.control_dependencies([tf.identity(tensor) for tensor in awaited]):
            failure = tf.debugging.Assert(False, [tf.identity(message)])
        with tf.control_dependencies([failure]):
            return tf.constant(False)

    check = tf.cond(tf.reduce_all(tf.equal(flags, 0)), lambda: tf.constant(True), fail)
    with tf.control_dependencies([check]):
        return [tf.nest.map_structure(tf.identity, g, expand_composites=True) for g in gradients]
