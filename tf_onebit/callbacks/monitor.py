"""Monitor: what the exchange costs and holds back, as Keras logs and TensorBoard scalars."""

import math

import keras
import tensorflow as tf

# `tf.summary.scalar` would need TensorBoard to be installed where the job runs.
_SCALAR = tf.compat.v1.SummaryMetadata(plugin_data={"plugin_name": "scalars"}, data_class=1)


class Monitor(keras.callbacks.Callback):
    """Adds to the logs of every batch and epoch:

    - `bytes_sent`: bytes that this worker sends per exchange: per step, or, with gradient
      accumulation, per update. With `BlockMomentum` also those of a block, per step of it.
    - `compression_ratio`: bytes of the same exchange in float32, over `bytes_sent`.
    - `residual_norm`: L2 norm of what this worker has not sent yet.

    and of threshold-sparse exchanges

    - `density`: the part of all values that exceeded the threshold `tau`.

    and of asynchronous ones

    - `staleness`: by how many steps the slowest worker is behind this one.
    - `delay`: in how many of its own steps this worker's updates reach the others, on average.

    The progress bar shows them, `History` keeps them, and so do TensorBoard's epoch logs.

    Args:
        update_freq: number of batches between two readings. Reading waits for the step.
        log_dir: if given, every reading is also written there as TensorBoard scalars
            `exchange/bytes_sent` and so on.

    Raises:
        ValueError: if `update_freq` is not positive, or the model's optimizer does not exchange
            gradients.

    Example:
        >>> import tf_onebit, tf_onebit.horovod as hvd
        >>> hvd.init()
        >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        >>> optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), tf_onebit.OneBit())
        >>> model.compile(optimizer, loss="mse")
        >>> data = tf.ones([32, 8]), tf.ones([32, 1])
        >>> history = model.fit(*data, verbose=0, callbacks=[Monitor()]).history
        >>> sorted(history)
        ['bytes_sent', 'compression_ratio', 'loss', 'residual_norm']
    """

    def __init__(self, update_freq=10, log_dir=None):
        super().__init__()
        if update_freq < 1:
            raise ValueError(
                "update_freq must be a positive number of batches. "
                f"Received: update_freq={update_freq}."
            )
        self.update_freq = update_freq
        self.log_dir = log_dir
        self._writer = None
        self._latest = {}
        self._next_reading = 0

    def on_train_begin(self, logs=None):
        if self._gradient_exchange() is None:
            raise ValueError(
                "Monitor needs an optimizer that exchanges gradients. Received: optimizer="
                f"{self.model.optimizer!r}. Compile the model in the scope of a strategy of "
                "tf_onebit.distribute, or with tf_onebit.horovod.DistributedOptimizer."
            )
        if self.log_dir is not None:
            self._writer = tf.summary.create_file_writer(str(self.log_dir))

    def on_epoch_begin(self, epoch, logs=None):
        self._next_reading = 0

    def on_train_batch_end(self, batch, logs=None):
        # With `steps_per_execution` not every batch comes by.
        if batch >= self._next_reading:
            self._read()
            self._write()
            self._next_reading = batch + self.update_freq
        if logs is not None:
            logs.update(self._latest)

    def on_epoch_end(self, epoch, logs=None):
        self._read()
        if logs is not None:
            logs.update(self._latest)

    def on_train_end(self, logs=None):
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _gradient_exchange(self):
        return getattr(self.model.optimizer, "gradient_exchange", None)

    def _read(self):
        exchanges = self._gradient_exchange().built
        blocks = self._gradient_exchange().blocks
        bytes_sent = sum(exchange.bytes_sent() for exchange in exchanges)
        full_bytes = sum(exchange.full_precision_bytes() for exchange in exchanges)
        squares = sum(exchange.residual_sum_of_squares() for exchange in exchanges)
        if blocks is not None:
            bytes_sent += blocks.bytes_sent()
            squares += blocks.residual_sum_of_squares()
        self._latest = {
            "bytes_sent": float(bytes_sent),
            "compression_ratio": full_bytes / bytes_sent if bytes_sent else 1.0,
            "residual_norm": math.sqrt(squares),
            **self._gradient_exchange().measures(),
        }

    def _write(self):
        if self._writer is not None:
            step = int(self.model.optimizer.iterations)
            with self._writer.as_default():
                for name, value in self._latest.items():
                    scalar = tf.constant(value, tf.float32)
                    tf.summary.write(f"exchange/{name}", scalar, step=step, metadata=_SCALAR)
