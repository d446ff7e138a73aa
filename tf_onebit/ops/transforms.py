"""Ops of transforms: normalized AdaGrad (Seide et al. 2014, ICASSP, section 4), momentum, Adam."""

from collections.abc import Sequence

import tensorflow as tf

from tf_onebit.ops.library import library


def adagrad_accumulate(
    gradient: tf.Tensor, average: tf.Variable, share: tf.Tensor | float, run_sizes: Sequence[int]
) -> tf.Tensor:
    """Updates the average of a gradient's squares, and sums up standard deviations.

        average <- average + share * (gradient^2 - average)
        sums[k]  = sum over run k of sqrt(average)

    It makes one pass over memory, in place. Averages that would not be finite keep their values.

    Args:
        gradient: float32 `[sum(run_sizes)]`: runs of values, one after another.
        average: float32 variable of the same size, zeros before the first gradient.
        share: float64 scalar from 0 to 1: weight of the new square in the average.
        run_sizes: list of ints: number of values of each run.

    Returns:
        `sums`, float64 `[len(run_sizes)]`: the same bits with any number of threads.

    Raises:
        InvalidArgumentError: if sizes do not agree, or `share` is not from 0 to 1.

    Example:
        >>> average = tf.Variable(tf.zeros([3]))
        >>> adagrad_accumulate(tf.constant([3.0, 4.0, 5.0]), average, 1.0, [2, 1]).numpy().tolist()
        [7.0, 5.0]
        >>> average.numpy().tolist()
        [9.0, 16.0, 25.0]
    """
    return library.tf_onebit_adagrad_accumulate(
        gradient=gradient,
        average=average.handle,
        share=tf.convert_to_tensor(share, tf.float64),
        run_sizes=run_sizes,
    )


def adagrad_normalize(
    gradient: tf.Tensor,
    average: tf.Variable,
    means: tf.Tensor | Sequence[float],
    run_sizes: Sequence[int],
    epsilon: float,
) -> tf.Tensor:
    """Divides a gradient by its standard deviation, in units of a mean of standard deviations.

        normalized = gradient / max(sqrt(average) / means[k], epsilon)      in run k

    It makes one pass over memory. In a graph, the result takes the gradient's memory if no other
    op needs it. If `means[k]` is 0, the gradients of run k stay unchanged.

    Args:
        gradient, average, run_sizes: as in `adagrad_accumulate`.
        means: float64 `[len(run_sizes)]`.
        epsilon: float, positive.

    Returns:
        float32 tensor like `gradient`.

    Raises:
        InvalidArgumentError: if sizes do not agree, or a number is out of its range.

    Example:
        >>> average = tf.Variable([1.0, 9.0])
        >>> gradient = tf.constant([5.0, 6.0])
        >>> adagrad_normalize(gradient, average, [2.0], [2], epsilon=1e-3).numpy().tolist()
        [10.0, 4.0]
    """
    return library.tf_onebit_adagrad_normalize(
        gradient=gradient,
        average=average.handle,
        means=tf.convert_to_tensor(means, tf.float64),
        run_sizes=run_sizes,
        epsilon=epsilon,
    )


def momentum(
    gradient: tf.Tensor,
    velocity: tf.Variable,
    momentum: float,
    nesterov: bool = False,
    factor: tf.Tensor | float = 1.0,
) -> tf.Tensor:
    """Adds a multiple of a gradient to a decaying sum of all before it.

        velocity <- momentum * velocity + factor * gradient
        moved     = velocity, or momentum * velocity + factor * gradient with Nesterov's

    It makes one pass over memory. In a graph, the result takes the gradient's memory if no other
    op needs it. A velocity that would not be finite keeps its value.

    Args:
        gradient: float32 tensor.
        velocity: float32 variable of the same size.
        momentum: float, at least 0 and less than 1.
        nesterov: bool.
        factor: float32 scalar, such as minus the learning rate.

    Returns:
        float32 tensor like `gradient`.

    Raises:
        InvalidArgumentError: if sizes do not agree, or `momentum` is out of its range.

    Example:
        >>> velocity = tf.Variable([2.0])
        >>> momentum(tf.constant([1.0]), velocity, 0.5).numpy().tolist()
        [2.0]
        >>> momentum(tf.constant([1.0]), velocity, 0.5, nesterov=True).numpy().tolist()
        [2.0]
    """
    return library.tf_onebit_momentum(
        gradient=gradient,
        velocity=velocity.handle,
        factor=factor,
        momentum=momentum,
        nesterov=nesterov,
    )


def adam(
    gradient: tf.Tensor,
    average: tf.Variable,
    square: tf.Variable,
    factor: tf.Tensor | float,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-7,
    noise: tf.Tensor | float = 0.0,
    unbias: tf.Tensor | float = 1.0,
) -> tf.Tensor:
    """Follows a gradient and its square, and divides the one average by the root of the other.

        deviation = gradient - unbias * average
        square  <- square + (1 - beta_2) * (gradient^2 - noise * deviation^2 - square)
        average <- average + (1 - beta_1) * (gradient - average)
        update   = factor * average / (sqrt(square) + epsilon)

    With `noise=0` this is a step of Adam (Kingma and Ba 2015, as in Keras), with
    `factor = -learning_rate * sqrt(1 - beta_2^t) / (1 - beta_1^t)`. Otherwise squares are those of
    a mean of several gradients, of which this is one: see `Exchange`. Then `square` is at least
    `average^2` times what is possible without noise: `(1 - beta_2) * (1 - beta_1^2 / beta_2) /
    (1 - beta_1)^2`.

    It makes one pass over memory. In a graph, the update takes the gradient's memory if no other op
    needs it. If a square would not be finite, both averages of this value stay as they were, and
    its update is NaN.

    Args:
        gradient: float32 tensor.
        average, square: float32 variables of the same size.
        factor: float32 scalar.
        beta_1, beta_2: floats from 0 to 1: decay of the averages.
        epsilon: float, at least 0.
        noise: float32 scalar, from 0 to 1: the part of squared deviations that squares leave out.
        unbias: float32 scalar, the factor that makes `average` the mean of earlier gradients.

    Returns:
        `update`, float32 tensor like `gradient`.

    Raises:
        InvalidArgumentError: if sizes do not agree, a number is out of its range, or both averages
            are the same variable.

    Example:
        >>> average, square = tf.Variable([0.0]), tf.Variable([0.0])
        >>> adam(tf.constant([4.0]), average, square, -1.0, 0.5, 0.75, 0.0).numpy().tolist()
        [-1.0]
        >>> average.numpy().tolist(), square.numpy().tolist()
        ([2.0], [4.0])
    """
    return library.tf_onebit_adam(
        gradient=gradient,
        variables=[average.handle, square.handle],
        factor=factor,
        noise=noise,
        unbias=unbias,
        share_of_gradient=1 - beta_1,
        share_of_square=1 - beta_2,
        epsilon=epsilon,
    )
