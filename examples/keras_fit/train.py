"""Trains a small convolutional network on handwritten digits, on several workers.

tf-onebit launch -np 2 -- python examples/keras_fit/train.py
python examples/keras_fit/train.py --engine mirrored
horovodrun --gloo -np 2 python examples/keras_fit/train.py --engine horovod
"""

import argparse
import contextlib

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import tf_onebit

GLOBAL_BATCH_SIZE = 64  # samples of all workers together
LEARNING_RATE = 0.003
SGD_LEARNING_RATE = 0.2
EXCHANGES = "full_precision", "one_bit", "threshold"


class Scope:
    """A strategy. It divides the data, and the model is made in its scope."""

    def __init__(self, strategy):
        self.rank = strategy.extended.engine.ranks[0]
        self.workers = 1  # the strategy divides the data
        self.scope = strategy.scope
        self.callbacks = []

    def distributed(self, optimizer):
        return optimizer  # the strategy's scope distributes it


class Horovod:
    """A job over Horovod. Each worker wraps the optimizer and takes its share of the data."""

    def __init__(self, exchange, asynchronous):
        import tf_onebit.horovod as hvd

        hvd.init()
        self._hvd, self._exchange, self._asynchronous = hvd, exchange, asynchronous
        self.rank, self.workers = hvd.rank(), hvd.size()
        self.scope = contextlib.nullcontext
        self.callbacks = [hvd.BroadcastGlobalVariablesCallback(0)]

    def distributed(self, optimizer):
        if self._asynchronous:
            return self._hvd.AsynchronousOptimizer(optimizer, self._exchange, max_staleness=10)
        return self._hvd.DistributedOptimizer(optimizer, self._exchange)


def make_exchange(options):
    if options.exchange == "full_precision":
        return tf_onebit.FullPrecision()
    if options.exchange == "one_bit":
        one_bit = tf_onebit.OneBit(min_size=256)
        return one_bit if options.bmuf else tf_onebit.WarmStart(one_bit, steps=20)
    return tf_onebit.Threshold(options.tau, options.target_density, options.coding)


def connect(engine, exchange, asynchronous):
    if engine == "horovod":
        return Horovod(exchange, asynchronous)
    if engine == "multi_worker":
        return Scope(tf_onebit.distribute.MultiWorkerMirroredStrategy(exchange))
    devices = None
    if not tf.config.list_physical_devices("GPU"):  # use two devices on this CPU
        cpu = tf.config.list_physical_devices("CPU")[0]
        parts = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, parts)
        devices = ["CPU:0", "CPU:1"]
    return Scope(tf_onebit.distribute.MirroredStrategy(exchange, devices))


def make_optimizer(options):
    if options.asynchronous:
        return keras.optimizers.SGD(SGD_LEARNING_RATE)
    if options.bmuf:  # BlockMomentum corrects the moments of this Adam
        return tf_onebit.optimizers.Adam(LEARNING_RATE, beta_1=0.5)
    return keras.optimizers.Adam(LEARNING_RATE)


def make_model():
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10),
        ]
    )


def load_data():
    """Returns images `[n, 8, 8, 1]` from 0 to 1 and digits `[n]`, to train on and held out."""
    images, digits = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype(np.float32) / 16
    order = np.random.default_rng(0).permutation(len(images))
    images, digits = images[order], digits[order].astype(np.int32)
    return (images[:1440], digits[:1440]), (images[1440:], digits[1440:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--engine", choices=["multi_worker", "mirrored", "horovod"], default="multi_worker"
    )
    parser.add_argument("--exchange", choices=EXCHANGES, default="one_bit")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--backup", help="directory of backups, from which a killed run resumes")
    parser.add_argument("--tau", type=float, help="threshold: smallest absolute value to send")
    parser.add_argument(
        "--target-density", type=float, help="threshold: fraction of values to send"
    )
    parser.add_argument("--coding", choices=["packed", "golomb_rice"], default="packed")
    parser.add_argument("--asynchronous", action="store_true", help="threshold over Horovod, SGD")
    parser.add_argument("--bmuf", action="store_true", help="train in blocks")
    parser.add_argument("--sync-period", type=int, default=8, help="bmuf: steps in a block")
    parser.add_argument("--block-momentum", type=float, help="bmuf: default 1 - 1 / workers")
    options = parser.parse_args()
    if options.bmuf and (options.asynchronous or options.engine == "mirrored"):
        parser.error("--bmuf is for processes that train apart: --engine multi_worker or horovod.")
    if options.asynchronous and (options.exchange, options.engine) != ("threshold", "horovod"):
        parser.error("--asynchronous needs --exchange threshold and --engine horovod.")

    # This comes first, because a strategy must be made before TensorFlow is used.
    exchange = make_exchange(options)
    in_every_step = tf_onebit.Local() if options.bmuf else exchange
    job = connect(options.engine, in_every_step, options.asynchronous)
    keras.utils.set_random_seed(1)
    (images, digits), held_out = load_data()
    mine = slice(job.rank % job.workers, None, job.workers)
    callbacks = [*job.callbacks, tf_onebit.callbacks.Monitor()]
    if options.bmuf:
        momentum = "auto" if options.block_momentum is None else options.block_momentum
        blocks = tf_onebit.callbacks.BlockMomentum(options.sync_period, momentum, exchange=exchange)
        callbacks.insert(0, blocks)
    if options.backup:
        callbacks.append(tf_onebit.callbacks.BackupAndRestore(options.backup, save_freq=10))
    with job.scope():
        model = make_model()
        model.compile(
            job.distributed(make_optimizer(options)),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    model.fit(
        images[mine],
        digits[mine],
        GLOBAL_BATCH_SIZE // job.workers,
        options.epochs,
        verbose=2 if job.rank == 0 else 0,
        callbacks=callbacks,
    )
    # All workers call this, because under a strategy they evaluate together.
    _, accuracy = model.evaluate(*held_out, verbose=0)
    if job.rank == 0:
        print(f"held-out accuracy: {accuracy:.4f}")


if __name__ == "__main__":
    main()
