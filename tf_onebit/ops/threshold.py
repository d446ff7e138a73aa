"""Ops of threshold-sparse updates.

A message is `[parts, words]`, of 32-bit words: int32, or float32 with the same bits. There is one
row for each run of `part_size` values, because an index has 31 bits. A row consists of a header,
the values sent, and padding. The words of the header are:

    FLAG       0, or 1 + the index of the first gradient with a value that is not finite
    WORDS      length of the message in words, with the header and without padding
    COUNT      number of values that are sent
    EXCEEDING  number of values above the threshold, sent or without room
    STEP       what receivers add for a sent value: the bits of a float32
    SQUARES    sum of squares of the residual: the bits of a float32

The header is followed by one word for each sent value, in ascending order of indices. The word is
the index, with the highest bit set if the value is negative. `golomb_rice_encode` replaces these
words by fewer bits.
"""

from collections.abc import Sequence

import tensorflow as tf

from tf_onebit.ops.library import library

FLAG, WORDS, COUNT, EXCEEDING, STEP, SQUARES, HEADER_WORDS = range(7)
MAX_PART_SIZE = 2**31


def threshold_encode(
    gradients: Sequence[tf.Tensor],
    residual: tf.Variable,
    threshold: tf.Tensor | float,
    step: tf.Tensor | float,
    capacity: tf.Tensor | int,
    sizes: Sequence[int],
    part_size: int = MAX_PART_SIZE,
    pad: bool = True,
    dtype: tf.DType = tf.int32,
    magnitude: tf.Tensor | float | None = None,
    decay: float = 1.0,
) -> tf.Tensor:
    """Encodes values above a threshold, with error feedback (Strom 2015, section 2.6, 4 to 7).

        corrected = gradient + decay * residual
        sent      = +1 if corrected > threshold, -1 if corrected < -threshold, else 0
        residual  = corrected - magnitude * sent

    It makes one pass over memory. If more than `capacity` values exceed the threshold, those with
    the highest indices wait in the residual.

    Args:
        gradients: list of tensors, all float32, float16 or bfloat16.
        residual: float32 variable with as many values as all gradients. Updated in place.
        threshold: float32 scalar, positive. With infinity no value is sent.
        step: float32 scalar, at least 0 and finite: what receivers add for a sent value.
        capacity: int64 scalar: the maximum number of values in the message of a part.
        sizes: list of the gradients' numbers of values.
        part_size: number of values that one part covers.
        pad: whether a message gets the length of one with `capacity` values. On a GPU it always
            does.
        dtype: dtype of the words: `tf.int32`, or `tf.float32` to keep them on a GPU.
        magnitude: float32 scalar, at least 0 and finite: what a sent value takes from the
            residual. Default: the threshold, as in the paper.
        decay: float, above 0 and at most 1: factor on the residual.

    Returns:
        Words `[parts, words]`.

    Raises:
        InvalidArgumentError: if sizes do not agree, or a number is out of its range.

    Example:
        >>> import tensorflow as tf
        >>> residual = tf.Variable([0.0, -0.8, 0.9])
        >>> message = threshold_encode([tf.fill([3], 0.2)], residual, 1.0, 1.0, 2, [3])
        >>> message.shape, int(message[0, COUNT]), int(message[0, HEADER_WORDS])
        (TensorShape([1, 8]), 1, 2)
        >>> residual.numpy().round(2).tolist()
        [0.20000000298023224, -0.6000000238418579, 0.10000000149011612]
    """
    return library.tf_onebit_threshold_encode(
        gradients=gradients,
        residual=residual.handle,
        threshold=threshold,
        magnitude=threshold if magnitude is None else magnitude,
        step=step,
        capacity=capacity,
        sizes=sizes,
        part_size=part_size,
        pad=pad,
        decay=decay,
        W=dtype,
    )


def threshold_decode_sum(
    messages: tf.Tensor,
    gradients: Sequence[tf.Tensor],
    sizes: Sequence[int],
    part_size: int = MAX_PART_SIZE,
    scale: float = 1.0,
) -> list[tf.Tensor]:
    """Decodes the messages of all workers into gradients, and sums them.

        gradient = scale * sum over k of step_k * sent_k

    Args:
        messages: words `[world_size, parts, words]`; row k came from rank k. Added in this order,
            in float32.
        gradients: list of the local gradients, whose values are not read. In a graph, the result
            takes their memory if no other op needs them.
        sizes, part_size: as in `threshold_encode`.
        scale: factor on the result: 1 / world_size for the mean over the workers.

    Returns:
        List of tensors with the shapes and dtypes of `gradients`.

    Raises:
        InvalidArgumentError: if a message is corrupt, or the gradients do not have these sizes.

    Example:
        >>> import tensorflow as tf
        >>> local, residual = tf.constant([0.2, 3.0]), tf.Variable(tf.zeros([2]))
        >>> message = threshold_encode([local], residual, 1.0, 1.0, 2, [2])
        >>> (total,) = threshold_decode_sum(tf.stack([message, message]), [local], [2])
        >>> total.numpy().tolist()
        [0.0, 2.0]
    """
    return library.tf_onebit_threshold_decode_sum(
        messages=messages, gradients=gradients, sizes=sizes, part_size=part_size, scale=scale
    )


def threshold_decode_add(
    variables: Sequence[tf.Variable],
    messages: tf.Tensor,
    factor: tf.Tensor | float,
    sizes: Sequence[int],
    part_size: int = MAX_PART_SIZE,
    scale: float = 1.0,
) -> tf.Operation | None:
    """Decodes the messages of all workers, and adds their sum to variables.

        variable = variable + factor * (scale * sum over k of step_k * sent_k)

    Only values that were sent are read and written. They get the same bits as with
    `threshold_decode_sum` and an addition.

    Args:
        variables: list of float32 variables. Updated in place, each under its lock.
        messages, sizes, part_size, scale: as in `threshold_decode_sum`.
        factor: float32 scalar.

    Returns:
        The operation, in a graph.

    Raises:
        InvalidArgumentError: if a message is corrupt, or the variables do not have these sizes. All
            variables then keep their values.

    Example:
        >>> import tensorflow as tf
        >>> weights, residual = tf.Variable([1.0, 1.0]), tf.Variable(tf.zeros([2]))
        >>> message = threshold_encode([tf.constant([0.1, 3.0])], residual, 2.0, 2.0, 2, [2])
        >>> threshold_decode_add([weights], tf.stack([message, message]), -0.5, [2], scale=0.5)
        >>> weights.numpy().tolist()
        [1.0, 0.0]
    """
    return library.tf_onebit_threshold_decode_add(
        variables=[variable.handle for variable in variables],
        messages=messages,
        factor=factor,
        sizes=sizes,
        part_size=part_size,
        scale=scale,
    )


def threshold_apply(
    variables: Sequence[tf.Variable], messages: tf.Tensor, part_size: int = MAX_PART_SIZE
) -> tf.Operation | None:
    """Subtracts the values of messages from variables (Strom 2015, section 2.6, 1 and 9).

        variable = variable - step_k * sent_k        for one message after another

    Args:
        variables: list of float32 variables. Updated in place, each under its lock.
        messages: words `[number of messages, parts, words]`.
        part_size: as in `threshold_encode`.

    Returns:
        The operation, in a graph.

    Raises:
        InvalidArgumentError: if a message is corrupt. All variables then keep their values.

    Example:
        >>> import tensorflow as tf
        >>> weights, residual = tf.Variable([1.0, 1.0]), tf.Variable(tf.zeros([2]))
        >>> message = threshold_encode([tf.constant([0.1, -3.0])], residual, 2.0, 0.5, 2, [2])
        >>> threshold_apply([weights], message[tf.newaxis])
        >>> weights.numpy().tolist()
        [1.0, 1.5]
    """
    return _update(variables, _sizes_of(variables), messages, part_size, clears=False)


def threshold_clear(
    variables: Sequence[tf.Variable],
    messages: tf.Tensor,
    part_size: int = MAX_PART_SIZE,
    ranges: Sequence[tuple[int, int]] | None = None,
) -> tf.Operation | None:
    """Sets variables to zero where messages have values (Lin et al. 2018, section 3.2).

        variable = 0 where a value is sent, else variable

    Args:
        variables, messages, part_size: as in `threshold_apply`.
        ranges: list of (first value, number of values) that messages are about, one for each
            variable. Default: the whole variables.

    Returns:
        The operation, in a graph.

    Raises:
        InvalidArgumentError: as in `threshold_apply`; also if a range does not fit its variable.

    Example:
        >>> import tensorflow as tf
        >>> momentum, residual = tf.Variable([1.0, 1.0]), tf.Variable(tf.zeros([2]))
        >>> message = threshold_encode([tf.constant([0.1, -3.0])], residual, 2.0, 0.5, 2, [2])
        >>> threshold_clear([momentum], message[tf.newaxis])
        >>> momentum.numpy().tolist()
        [1.0, 0.0]
    """
    if ranges is None:
        return _update(variables, _sizes_of(variables), messages, part_size, clears=True)
    begins, sizes = zip(*ranges, strict=True)
    return _update(variables, sizes, messages, part_size, clears=True, begins=begins)


def _sizes_of(variables: Sequence[tf.Variable]) -> list[int]:
    return [variable.shape.num_elements() for variable in variables]


def _update(
    variables: Sequence[tf.Variable],
    sizes: Sequence[int],
    messages: tf.Tensor,
    part_size: int,
    clears: bool,
    begins: Sequence[int] = (),
) -> tf.Operation | None:
    return library.tf_onebit_threshold_apply(
        variables=[variable.handle for variable in variables],
        messages=messages,
        sizes=sizes,
        part_size=part_size,
        clears=clears,
        begins=begins,
    )


def golomb_rice_encode(
    messages: tf.Tensor, sizes: Sequence[int], part_size: int = MAX_PART_SIZE, pad: bool = True
) -> tf.Tensor:
    """Codes the gaps between the indices of messages (Strom 2015, section 2.5).

    A gap g is coded as the quotient `g >> b` in unary, its b low bits, and the sign. Each block of
    256 values has the parameter b that makes it shortest. Independent positions with density d
    take about `1.5 + log2(1 / d)` bits and the sign: 11.5 + 1 for d = 0.001.

    Args:
        messages: words `[number of messages, parts, words]`, from `threshold_encode`.
        sizes, part_size: as in `threshold_encode`.
        pad: whether the result gets a length that is enough for any messages of that many words.

    Returns:
        Words `[number of messages, parts, words]`.

    Raises:
        InvalidArgumentError: if a message is corrupt.

    Example:
        >>> import tensorflow as tf
        >>> gradient, residual = tf.range(4096.0), tf.Variable(tf.zeros([4096]))
        >>> message = threshold_encode([gradient], residual, 95.0, 1.0, 4096, [4096], pad=False)
        >>> coded = golomb_rice_encode(message[tf.newaxis], [4096], pad=False)
        >>> message.shape[-1], coded.shape[-1]
        (4006, 263)
    """
    return library.tf_onebit_golomb_rice_encode(
        messages=messages, sizes=sizes, part_size=part_size, pad=pad
    )


def golomb_rice_decode(
    coded: tf.Tensor, sizes: Sequence[int], part_size: int = MAX_PART_SIZE
) -> tf.Tensor:
    """Inverts `golomb_rice_encode`, and returns messages without padding.

    Args:
        coded: words `[number of messages, parts, words]`.
        sizes, part_size: as in `threshold_encode`.

    Returns:
        Words `[number of messages, parts, words]`, with the length of the longest message.

    Raises:
        InvalidArgumentError: if a message is corrupt.

    Example:
        >>> import tensorflow as tf
        >>> residual = tf.Variable(tf.zeros([9]))
        >>> message = threshold_encode([tf.range(9.0)], residual, 5.0, 1.0, 9, [9], pad=False)
        >>> coded = golomb_rice_encode(message[tf.newaxis], [9])
        >>> golomb_rice_decode(coded, [9])[0, 0, HEADER_WORDS:].numpy().tolist()
        [6, 7, 8]
    """
    return library.tf_onebit_golomb_rice_decode(coded=coded, sizes=sizes, part_size=part_size)
