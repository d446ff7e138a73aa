"""The ops of blockwise model-update filtering, BMUF (Chen, Ding, Huo 2020).

Workers train a block of steps each on its own. Then the mean of their models, theta_bar, and what
they began the block with, theta_init, become the update of a global model, as if by momentum:

    Delta_n = eta Delta_(n-1) + zeta (theta_bar - theta_init)                            Eq. 1

with a block momentum eta and a block learning rate zeta. The state, the global model and Delta, is
in float32 for variables in float32, float16 or bfloat16, and in float64 for those in float64; so is
the arithmetic. theta_init is not stored, but computed from the state, to the bit.

Variables are `tf.Variable`s, or whatever else has `handle`, `dtype` and `shape`. Numbers are
Python's or float64 tensors, so that one graph serves all blocks.
"""

import tensorflow as tf

from tf_onebit.ops.library import library


def _handles(variables):
    return [variable.handle for variable in variables]


def _coefficients(*numbers):
    # One by one: a list with tensors in it would make float32 of the numbers beside them.
    return tf.stack([tf.convert_to_tensor(number, tf.float64) for number in numbers])


def block_difference(variables, global_model, deltas, scale, look_ahead):
    """Computes how far variables have come since a block began.

        begin      = global_model + look_ahead * delta      rounded to the variable's type
        difference = scale * (variable - begin)

    One pass over memory, from all variables at once.

    Args:
        variables: list of variables, all float32, float64, float16 or bfloat16.
        global_model: list of variables of the same shapes, of the state's type.
        deltas: list like `global_model`; or an empty one, for begin = global_model.
        scale: scalar: 1 / world_size where differences are to be added up to their mean.
        look_ahead: scalar: the block momentum when the block began, if it is Nesterov's; 0 if it is
            classical.

    Returns:
        List of tensors of the shapes and dtypes of `variables`.

    Raises:
        InvalidArgumentError: if shapes or dtypes do not agree, a variable is not initialized or
            given twice, or a number is not finite.

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
    means,
    variables,
    global_model,
    deltas,
    block_momentum,
    block_learning_rate,
    look_ahead,
    nesterov,
    relative,
):
    """Ends a block: filters the update of the model, and sets variables for the next block.

    Equations (Chen, Ding, Huo 2020, Eq. 1, 6 and 9), where begin is that of `block_difference`, and
    base = begin + zeta (mean - begin), which is the mean if zeta is 1:

        delta'    = eta delta + zeta (mean - begin)
        nesterov:   global_model' = base                  variable' = base + eta delta'
        classical:  global_model' = base + eta delta      variable' = global_model'

    One pass over memory, in place. If eta = 0 and zeta = 1, variables become the means to the bit.

    Args:
        means: list of tensors of the shapes and dtypes of `variables`: their means over the
            workers, or those of their differences.
        variables: list of variables, all float32, float64, float16 or bfloat16. Only written.
        global_model: list of variables of the same shapes, of the state's type.
        deltas: list like `global_model`.
        block_momentum: scalar, eta.
        block_learning_rate: scalar, zeta.
        look_ahead: scalar: as in `block_difference`, of the block that ends. The next block's is
            `block_momentum`, or 0 if it is classical.
        nesterov: bool: Nesterov's block momentum, or classical.
        relative: bool: whether `means` are of differences, to which begin is to be added.

    Returns:
        The operation, in a graph.

    Raises:
        InvalidArgumentError: as `block_difference`. Nothing is changed then.

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


def moments_update(means, variables, begins, extrapolation, floor, relative):
    """Ends a block: sets an optimizer's moments for the next block.

    Equation (Chen, Ding, Huo 2020, Eq. 16 to 18, put together), with kappa = b (1 - beta^s) /
    (1 - b), b = beta^tau for a block of tau steps, and s steps that the look-ahead stands for:

        variable' = begin' = max(mean + kappa (mean - begin), floor * begin)

    One pass over memory, in place. With kappa = 0, and no floor above the mean, it is the mean.

    Args:
        means: list of tensors of the shapes and dtypes of `variables`: their means over the
            workers, or those of their differences.
        variables: list of variables, all float32, float64, float16 or bfloat16. Only written.
        begins: list of variables of the same shapes, of the state's type: what the moments began
            the block with.
        extrapolation: scalar, kappa.
        floor: scalar: beta^(tau + s) for second moments, which decay no faster; negative: none.
        relative: bool: whether `means` are of differences, to which begin is to be added.

    Returns:
        The operation, in a graph.

    Raises:
        InvalidArgumentError: as `block_difference`. Nothing is changed then.

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
