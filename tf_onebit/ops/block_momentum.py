"""Ops of blockwise model-update filtering, BMUF (Chen, Ding, Huo 2020).

Each worker trains a block of steps on its own. The block begins with the model theta_init, and
ends with the mean of the workers' models, theta_bar. Their difference updates a global model as
momentum does:

    Delta_n = eta Delta_(n-1) + zeta (theta_bar - theta_init)                            Eq. 1

where eta is the block momentum, and zeta the block learning rate. The state is the global model
and Delta. State and arithmetic are in float32 for variables in float32, float16 or bfloat16, and
in float64 for variables in float64. theta_init is not stored, but computed from the state, with
the same bits.

Variables are `tf.Variable`s, or other objects with `handle`, `dtype` and `shape`. Numbers are
Python's or float64 tensors, so that one graph serves all blocks.
"""

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import tensorflow as tf

from tf_onebit.ops.library import library

_Number: TypeAlias = tf.Tensor | float


class _HasHandle(Protocol):
    """Variable, or an object like one."""

    handle: tf.Tensor
    dtype: tf.DType
    shape: tf.TensorShape


def _handles(variables: Sequence[_HasHandle]) -> list[tf.Tensor]:
    return [variable.handle for variable in variables]


def _coefficients(*numbers: _Number) -> tf.Tensor:
    # Converted one by one: in a list with tensors, Python's numbers would become float32.
    return tf.stack([tf.convert_to_tensor(number, tf.float64) for number in numbers])


def block_difference(
    variables: Sequence[_HasHandle],
    global_model: Sequence[_HasHandle],
    deltas: Sequence[_HasHandle],
    scale: _Number,
    look_ahead: _Number,
) -> list[tf.Tensor]:
    """Computes the change of variables since the begin of a block.

        begin      = global_model + look_ahead * delta      rounded to the variable's type
        difference = scale * (variable - begin)

    It makes one pass over memory, and reads all variables at the same time.

    Args:
        variables: list of variables, all float32, float64, float16 or bfloat16.
        global_model: list of variables with the same shapes and the state's type.
        deltas: list like `global_model`, or an empty list for begin = global_model.
        scale: scalar; 1 / world_size if the workers' differences are summed to their mean.
        look_ahead: scalar; the block momentum at the begin of the block for Nesterov's block
            momentum, and 0 for the classical one.

    Returns:
        List of tensors with the shapes and dtypes of `variables`.

    Raises:
        InvalidArgumentError: if shapes or dtypes do not agree, a variable is not initialized or
            occurs twice, or a number is not finite.

    Example:
        >>> import tensorflow as tf
        >>> weights, model = tf.Variable([1.5, 2.0]), tf.Variable([1.0, 2.0])
        >>> delta = tf.Variable([0.0, 2.0])
        >>> (difference,) = block_difference([weights], [model], [delta], 0.5, look_ahead=0.5)
        >>> difference.numpy().tolist()
        [0.25, -0.5]
    """
    return library.tf_onebit_block_difference(
        variables=_handles(variables),
        globals=_handles(global_model),
        deltas=_handles(deltas),
        coefficients=_coefficients(scale, look_ahead),
        T=variables[0].dtype,
        shapes=[variable.shape for variable in variables],
    )


def block_update(
    means: Sequence[tf.Tensor],
    variables: Sequence[_HasHandle],
    global_model: Sequence[_HasHandle],
    deltas: Sequence[_HasHandle],
    block_momentum: _Number,
    block_learning_rate: _Number,
    look_ahead: _Number,
    nesterov: bool,
    relative: bool,
) -> tf.Operation | None:
    """Ends a block: filters the update of the model, and sets variables for the next block.

    Equations (Chen, Ding, Huo 2020, Eq. 1, 6 and 9), with begin as in `block_difference`:

        base      = begin + zeta (mean - begin)           the mean, if zeta is 1
        delta'    = eta delta + zeta (mean - begin)
        nesterov:   global_model' = base                  variable' = base + eta delta'
        classical:  global_model' = base + eta delta      variable' = global_model'

    It makes one pass over memory, in place. If eta = 0 and zeta = 1, variables become exactly the
    means.

    Args:
        means: list of tensors with the shapes and dtypes of `variables`: means over the workers
            of the variables, or of their differences.
        variables: list of variables, all float32, float64, float16 or bfloat16. Only written.
        global_model: list of variables with the same shapes and the state's type.
        deltas: list like `global_model`.
        block_momentum: scalar, eta.
        block_learning_rate: scalar, zeta.
        look_ahead: scalar; see `block_difference`, for the block that ends. For the next block it
            is `block_momentum`, or 0 for the classical block momentum.
        nesterov: bool; True for Nesterov's block momentum, False for the classical one.
        relative: bool; whether `means` are means of differences, to which begin is added.

    Returns:
        The operation, in a graph.

    Raises:
        InvalidArgumentError: in the same cases as `block_difference`. All variables then keep
            their values.

    Example:
        >>> import tensorflow as tf
        >>> weights, model, delta = (tf.Variable([value]) for value in (3.0, 1.0, 0.0))
        >>> block_update(
        ...     [tf.constant([2.0])], [weights], [model], [delta], 0.5, 1.0, 0.5,
        ...     nesterov=True, relative=False,
        ... )
        >>> weights.numpy().tolist(), model.numpy().tolist(), delta.numpy().tolist()
        ([2.5], [2.0], [1.0])
    """
    return library.tf_onebit_block_update(
        means=means,
        variables=_handles(variables),
        globals=_handles(global_model),
        deltas=_handles(deltas),
        coefficients=_coefficients(block_momentum, block_learning_rate, look_ahead),
        nesterov=nesterov,
        relative=relative,
    )


def late_block_update(
    sums: Sequence[tf.Tensor],
    changes: Sequence[tf.Tensor],
    variables: Sequence[_HasHandle],
    global_model: Sequence[_HasHandle],
    deltas: Sequence[_HasHandle],
    block_momentum: _Number,
    block_learning_rate: _Number,
    look_ahead: _Number,
    correction: _Number,
    scale: _Number,
    nesterov: bool,
) -> tf.Operation | None:
    """Ends a block some steps late, and keeps what variables have learned meanwhile.

    Equations, with `block_update` for the means of differences:

        learned   = (variable - begin) - change / scale
        variable' = block_update(correction * sum) + learned

    It makes one pass over memory, in place.

    Args:
        sums: list of tensors with the shapes and dtypes of `variables`: sums of the workers'
            `changes`.
        changes: list like `sums`: the `block_difference` of this worker when the block ended.
        variables: list of variables, all float32, float64, float16 or bfloat16.
        global_model, deltas, block_momentum, block_learning_rate, look_ahead, nesterov: see
            `block_update`.
        correction: scalar. Its product with the sums is the mean of the workers' differences.
        scale: scalar of `block_difference` in `changes`. If it is 0, nothing had been learned then.

    Returns:
        The operation, in a graph.

    Raises:
        InvalidArgumentError: in the same cases as `block_difference`. All variables then keep
            their values.

    Example:
        >>> import tensorflow as tf
        >>> weights, model, delta = (tf.Variable([value]) for value in (1.0, 0.0, 0.0))
        >>> changes = block_difference([weights], [model], [delta], 0.5, look_ahead=0.0)
        >>> _ = weights.assign_add([0.25])
        >>> sums = [changes[0] + 1.0]  # the other worker has come to 2.0
        >>> late_block_update(
        ...     sums, changes, [weights], [model], [delta], 0.0, 1.0, 0.0, 1.0, 0.5, nesterov=True
        ... )
        >>> weights.numpy().tolist(), model.numpy().tolist()
        ([1.75], [1.5])
    """
    inverse_scale = tf.math.divide_no_nan(
        tf.ones([], tf.float64), tf.convert_to_tensor(scale, tf.float64)
    )
    return library.tf_onebit_late_block_update(
        means=sums,
        changes=changes,
        variables=_handles(variables),
        globals=_handles(global_model),
        deltas=_handles(deltas),
        coefficients=_coefficients(
            block_momentum, block_learning_rate, look_ahead, correction, inverse_scale
        ),
        nesterov=nesterov,
    )


def moments_update(
    means: Sequence[tf.Tensor],
    variables: Sequence[_HasHandle],
    begins: Sequence[_HasHandle],
    extrapolation: _Number,
    floor: _Number,
    relative: bool,
) -> tf.Operation | None:
    """Ends a block: sets an optimizer's moments for the next block.

    Equations (Chen, Ding, Huo 2020, Eq. 16 to 18 combined):

        variable' = begin' = max(mean + kappa (mean - begin), floor * begin)
        kappa     = b (1 - beta^s) / (1 - b)
        b         = beta^tau

    for a block of tau steps, and a look-ahead that stands for s steps.

    It makes one pass over memory, in place. With kappa = 0, and no floor above the mean, the
    result is the mean.

    Args:
        means: list of tensors with the shapes and dtypes of `variables`: means over the workers
            of the variables, or of their differences.
        variables: list of variables, all float32, float64, float16 or bfloat16. Only written.
        begins: list of variables with the same shapes and the state's type: the moments at the
            begin of the block.
        extrapolation: scalar, kappa.
        floor: scalar; beta^(tau + s) for second moments, which decay no faster. Negative for no
            floor.
        relative: bool; whether `means` are means of differences, to which begin is added.

    Returns:
        The operation, in a graph.

    Raises:
        InvalidArgumentError: in the same cases as `block_difference`. All variables then keep
            their values.

    Example:
        >>> import tensorflow as tf
        >>> moment, begin = tf.Variable([0.0, 0.0]), tf.Variable([1.0, 1.0])
        >>> moments_update([tf.constant([2.0, 0.5])], [moment], [begin], 1.5, 0.25, False)
        >>> moment.numpy().tolist(), begin.numpy().tolist()
        ([3.5, 0.25], [3.5, 0.25])
    """
    return library.tf_onebit_moments_update(
        means=means,
        variables=_handles(variables),
        begins=_handles(begins),
        coefficients=_coefficients(extrapolation, floor),
        relative=relative,
    )
