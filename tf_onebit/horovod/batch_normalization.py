"""SyncBatchNormalization for Keras 3."""

import horovod.tensorflow as hvd
import keras
import tensorflow as tf


@keras.saving.register_keras_serializable(package="tf_onebit")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """Normalizes a batch by means and variances over the minibatches of all workers.

    Keras' own `BatchNormalization(synchronized=True)` asks a strategy for them, and over Horovod
    there is none. Workers have minibatches of the same size, and make every step together.

    Args:
        fused: False, as in Horovod.
        arguments: those of `keras.layers.BatchNormalization`.

    Raises:
        ValueError: with `fused=True`.

    Example:
        >>> hvd.init()
        >>> layer = SyncBatchNormalization()
        >>> layer(tf.ones([2, 8]), training=True).shape
        TensorShape([2, 8])
    """

    def __init__(self, fused=False, **arguments):
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
        moments = tf.stack([mean, variance + tf.square(mean)])
        mean, mean_of_squares = tf.unstack(hvd.allreduce(moments, op=hvd.Average))
        return mean, mean_of_squares - tf.square(mean)
