"""Ops of 1-bit SGD.

Messages are 32-bit words: int32, or float32 with the same bits.
"""

from collections.abc import Sequence

import tensorflow as tf

from tf_onebit._layout import Layout
from tf_onebit.ops.library import library


def one_bit_encode(
    gradients: Sequence[tf.Tensor],
    residual: tf.Variable,
    layout: Layout,
    levels: str = "mean",
    error_feedback: bool = True,
    dtype: tf.DType = tf.int32,
    value_scales: tf.Tensor | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Quantizes gradients to one bit per value, with error feedback.

    Equation (Seide et al. 2014, section 3), for every column:

        corrected = gradient + residual               gradient / value_scale with scales
        code      = corrected >= 0
        level[c]  = mean of the corrected values with code c; 0 if there are no such values
        residual  = corrected - level[code]

    With `levels="symmetric"` the threshold is the column's mean, and the levels are the mean
    minus and plus the mean absolute deviation from it.

    Args:
        gradients: list of tensors, all float32, float16 or bfloat16, sizes as in `layout`.
        residual: float32 variable `[layout.size]`, or a bfloat16 one, which is rounded up or down
            so that errors cancel out over time. Updated in place.
        layout: `tf_onebit._layout.Layout`.
        levels: "mean" or "symmetric".
        error_feedback: if False, the residual is neither read nor written.
        dtype: dtype of the words: `tf.int32`, or `tf.float32` to keep them on a GPU.
        value_scales: float32 `[layout.size]`, the divisors of the values in columns. `[0]` or None
            stands for ones.

    Returns:
        `messages`, words `[world_size, words]`: row k goes to the owner of shard k. Word 0 is 0,
        or 1 + the index of the first gradient with a value that is not finite.
        `residual_sum_of_squares`, float32 scalar.

    Raises:
        InvalidArgumentError: if a gradient, the residual or the scales do not have the layout's
            size.

    Example:
        >>> import tensorflow as tf
        >>> from tf_onebit._layout import Layout
        >>> layout = Layout([(64, 64, 64)], world_size=1)
        >>> residual = tf.Variable(tf.zeros([64]))
        >>> messages, _ = one_bit_encode([tf.ones([1, 64])], residual, layout)
        >>> messages.shape
        TensorShape([1, 5])
    """
    return library.tf_onebit_one_bit_encode(
        gradients=gradients,
        residual=residual.handle,
        levels=levels,
        error_feedback=error_feedback,
        W=dtype,
        value_scales=_or_ones(value_scales),
        **layout.attributes(),
    )


def one_bit_decode_sum(
    messages: tf.Tensor, layout: Layout, rank: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Sums the workers' messages about the shard that `rank` owns (Seide et al. 2014, 3.1).

        aggregate = sum over k of level_k[code_k]

    Args:
        messages: words `[world_size, words]`; row k came from rank k. Summed in this order.
        layout: `tf_onebit._layout.Layout`.
        rank: the owner of the shard.

    Returns:
        `aggregate`, float32 `[layout.shard_sizes[rank]]`, and `plain`, float32
        `[layout.plain_size]`: the sums over the workers.

    Raises:
        InvalidArgumentError: if the messages do not have the layout's shape.

    Example:
        >>> import tensorflow as tf
        >>> from tf_onebit._layout import Layout
        >>> layout = Layout([(64, 64, 64)], world_size=1)
        >>> residual = tf.Variable(tf.zeros([64]))
        >>> messages, _ = one_bit_encode([tf.fill([1, 64], 3.0)], residual, layout)
        >>> aggregate, plain = one_bit_decode_sum(messages, layout, rank=0)
        >>> aggregate.shape, plain.shape, float(aggregate[0])
        (TensorShape([64]), TensorShape([0]), 3.0)
    """
    return library.tf_onebit_one_bit_decode_sum(messages=messages, rank=rank, **layout.attributes())


def one_bit_encode_shard(
    aggregate: tf.Tensor,
    residual: tf.Variable,
    layout: Layout,
    rank: int,
    levels: str = "mean",
    error_feedback: bool = True,
    bits: int = 1,
    dtype: tf.DType = tf.int32,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Quantizes the aggregate of a shard, by the equation of `one_bit_encode`.

    This is the second quantization of Seide et al. 2014, section 3.1, with its own residual. With
    two bits it runs twice. The second run quantizes what the first one left:

        corrected = aggregate + residual
        first     = level[code] of corrected
        second    = level[code] of (corrected - first)
        residual  = corrected - first - second

    Args:
        aggregate: float32 `[layout.shard_sizes[rank]]`.
        residual: variable of the same size, of the types of `one_bit_encode`. Updated in place.
        layout, levels, error_feedback, dtype: as in `one_bit_encode`.
        rank: the owner of the shard.
        bits: 1 or 2. Two need error feedback.

    Returns:
        `message`, words `[bits, words]`, for all workers, and `residual_sum_of_squares`. Each row
        has the form of a row of `one_bit_encode`, without plain values.

    Raises:
        InvalidArgumentError: if the aggregate or the residual does not have the shard's size. If
            the number of bits is neither 1 nor 2, or is 2 without error feedback.

    Example:
        >>> import tensorflow as tf
        >>> from tf_onebit._layout import Layout
        >>> layout = Layout([(64, 64, 64)], world_size=1)
        >>> residual = tf.Variable(tf.zeros([64]))
        >>> one_bit_encode_shard(tf.ones([64]), residual, layout, rank=0)[0].shape
        TensorShape([1, 5])
    """
    return library.tf_onebit_one_bit_encode_shard(
        aggregate=aggregate,
        residual=residual.handle,
        rank=rank,
        levels=levels,
        error_feedback=error_feedback,
        bits=bits,
        W=dtype,
        **layout.attributes(),
    )


def one_bit_aggregate(
    messages: tf.Tensor,
    residual: tf.Variable,
    layout: Layout,
    rank: int,
    levels: str = "mean",
    error_feedback: bool = True,
    bits: int = 1,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Runs `one_bit_decode_sum` and `one_bit_encode_shard` in one pass over memory.

    Args:
        messages, layout, rank: as in `one_bit_decode_sum`.
        residual, levels, error_feedback, bits: as in `one_bit_encode_shard`.

    Returns:
        `message`, with the type of `messages`, and `residual_sum_of_squares`, see
        `one_bit_encode_shard`; and `plain`, see `one_bit_decode_sum`. All have the same bits.

    Raises:
        InvalidArgumentError: if the messages or the residual do not fit the layout, or the bits are
            refused as in `one_bit_encode_shard`.

    Example:
        >>> import tensorflow as tf
        >>> from tf_onebit._layout import Layout
        >>> layout = Layout([(64, 64, 64)], world_size=1)
        >>> residual, shard_residual = (tf.Variable(tf.zeros([64])) for _ in range(2))
        >>> messages, _ = one_bit_encode([tf.ones([1, 64])], residual, layout)
        >>> message, _, plain = one_bit_aggregate(messages, shard_residual, layout, rank=0)
        >>> message.shape, plain.shape
        (TensorShape([1, 5]), TensorShape([0]))
    """
    return library.tf_onebit_one_bit_aggregate(
        messages=messages,
        residual=residual.handle,
        rank=rank,
        levels=levels,
        error_feedback=error_feedback,
        bits=bits,
        **layout.attributes(),
    )


def one_bit_decode(
    messages: tf.Tensor,
    plain: tf.Tensor,
    gradients: Sequence[tf.Tensor],
    layout: Layout,
    scale: float = 1.0,
    bits: int = 1,
    value_scales: tf.Tensor | None = None,
) -> list[tf.Tensor]:
    """Decodes the messages of all shards into gradients (Seide et al. 2014, 3.1).

        gradient = scale * level[code]                               with one bit
        gradient = scale * (level_1[code_1] + level_2[code_2])       with two
        gradient = gradient * value_scale                            with scales of values

    Args:
        messages: words `[world_size * bits, words]`; the messages of the shards in their order.
        plain: float32 `[layout.plain_size]`, from `one_bit_decode_sum`.
        gradients: list of the local gradients, whose values are not read. In a graph, the result
            takes their memory if no other op needs them.
        layout: `tf_onebit._layout.Layout`.
        scale: factor on the result: 1 / world_size for the mean over the workers.
        bits: 1 or 2, the rows of a message.
        value_scales: as in `one_bit_encode`, here factors.

    Returns:
        List of tensors with the shapes and dtypes of `gradients`. With scales, a value is rounded
        to its dtype before and after the last multiplication.

    Raises:
        InvalidArgumentError: if the messages, the gradients or the scales do not fit the layout, or
            the number of bits is neither 1 nor 2.

    Example:
        >>> import tensorflow as tf
        >>> from tf_onebit._layout import Layout
        >>> layout = Layout([(64, 64, 64)], world_size=1)
        >>> residual = tf.Variable(tf.zeros([64]))
        >>> message, _ = one_bit_encode_shard(tf.fill([64], 3.0), residual, layout, rank=0)
        >>> local = [tf.zeros([1, 64])]
        >>> (mean,) = one_bit_decode(message, tf.zeros([0]), local, layout, scale=0.5)
        >>> float(mean[0, 0])
        1.5
    """
    return library.tf_onebit_one_bit_decode(
        messages=messages,
        plain=plain,
        value_scales=_or_ones(value_scales),
        gradients=gradients,
        scale=scale,
        bits=bits,
        **layout.attributes(),
    )


def one_bit_decode_add(
    variables: Sequence[tf.Variable],
    messages: tf.Tensor,
    plain: tf.Tensor,
    layout: Layout,
    factor: tf.Tensor | float,
    scale: float = 1.0,
    bits: int = 1,
    value_scales: tf.Tensor | None = None,
) -> tf.Operation | None:
    """Decodes the messages of all shards, and adds the values to variables.

        variable = variable + factor * gradient             with the gradient of `one_bit_decode`

    It makes one pass over memory, and gives the same bits as `one_bit_decode` and an addition.

    Args:
        variables: list of float32 variables. Updated in place, each under its lock.
        messages, plain, layout, scale, bits, value_scales: as in `one_bit_decode`.
        factor: float32 scalar.

    Returns:
        The operation, in a graph.

    Raises:
        InvalidArgumentError: as in `one_bit_decode`, here for variables in place of gradients. All
            variables then keep their values.

    Example:
        >>> import tensorflow as tf
        >>> from tf_onebit._layout import Layout
        >>> layout = Layout([(64, 64, 64)], world_size=1)
        >>> residual, weights = tf.Variable(tf.zeros([64])), tf.Variable(tf.ones([1, 64]))
        >>> message, _ = one_bit_encode_shard(tf.fill([64], 3.0), residual, layout, rank=0)
        >>> one_bit_decode_add([weights], message, tf.zeros([0]), layout, -0.5)
        >>> float(weights[0, 0])
        -0.5
    """
    return library.tf_onebit_one_bit_decode_add(
        variables=[variable.handle for variable in variables],
        messages=messages,
        plain=plain,
        value_scales=_or_ones(value_scales),
        factor=factor,
        scale=scale,
        bits=bits,
        **layout.attributes(),
    )


def one_bit_learn_scales(
    updates: Sequence[tf.Tensor], squares: tf.Variable, layout: Layout
) -> tf.Operation | None:
    """Follows the squares of the values of updates, from which their scales are made.

        squares = 0.95 * squares + 0.05 * update ** 2

    A result that is not finite is dropped. Plain tensors are not read.

    Args:
        updates: list of tensors, all float32, float16 or bfloat16, sizes as in `layout`.
        squares: float32 variable `[layout.size]`. Updated in place.
        layout: `tf_onebit._layout.Layout`.

    Returns:
        None, or the operation in a graph.

    Raises:
        InvalidArgumentError: if an update or the variable does not have the layout's size.

    Example:
        >>> import tensorflow as tf
        >>> from tf_onebit._layout import Layout
        >>> squares = tf.Variable(tf.zeros([64]))
        >>> one_bit_learn_scales([tf.fill([1, 64], 2.0)], squares, Layout([(64, 64, 64)], 1))
        >>> print(f"{squares[0]:.2f}")
        0.20
    """
    return library.tf_onebit_one_bit_learn_scales(
        updates=updates, squares=squares.handle, **layout.attributes()
    )


def _or_ones(value_scales: tf.Tensor | None) -> tf.Tensor:
    return tf.zeros([0]) if value_scales is None else value_scales
