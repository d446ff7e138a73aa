"""SyncBatchNormalization for Keras 3."""

from typing import Any

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from tf_onebit._framework_internals.tf_functions import CallNumbers

_numbers = CallNumbers()


@keras.saving.register_keras_serializable(package="tf_onebit")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """Batch normalization by means and variances over the minibatches of all workers.

    Keras' own `BatchNormalization(synchronized=True)` needs a strategy, and Horovod has none.
    Workers must have minibatches of the same size, and make every step together.

    Args:
        fused: False, as in Horovod.
        arguments: see `keras.layers.BatchNormalization`.

    Raises:
        ValueError: with `fused=True`.

    Example:
        >>> hvd.init()
        >>> layer = SyncBatchNormalization()
        >>> layer(tf.ones([2, 8]), training=True).shape
        TensorShape([2, 8])
    """

    def __init__(self, fused: bool = False, **arguments: Any) -> None:
        if fused or fused is None:
            raise ValueError(
                "A fused kernel normalizes by one worker's batch. Received: fused="
                f"{fused}. Leave it out."
            )
        super().__init__(**arguments)

    def _moments(self, inputs, mask):
        mean, variance = super()._moments(inputs, mask)
        if hvd.size() == 1:
            return mean, variance
        joint_mean, within = tf.unstack(_mean_over_workers(tf.stack([mean, variance])))
        # The mean of squares would lose all digits where a mean is large.
        return joint_mean, within + _mean_over_workers(tf.square(mean - joint_mean))


def _mean_over_workers(tensor):
    # Named by its position among the calls: a worker that made more layers names them otherwise.
    number = 0 if tf.executing_eagerly() else _numbers.next()
    place = f"tf_onebit_batch_normalization_{number}"

    @tf.custom_gradient
    def mean(tensor):
        def gradient(upstream):
            return _average(upstream, f"{place}_gradient")

        return _average(tensor, place), gradient

    return mean(tensor)


def _average(tensor, name):
    return hvd.allreduce(tensor, op=hvd.Average, name=name, ignore_name_scope=True)
