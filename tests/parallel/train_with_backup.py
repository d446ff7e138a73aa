"""Trains with backups, and may kill itself or show what it would leave behind.

python -m tests.parallel.train_with_backup
    --engine horovod | tensorflow | mirrored | alone --devices 2 --data arrays | dataset | sequence
    --directory backups --output folder --save-freq 3 --die-at 17 | --die-at-file 5
    --bmuf | --bmuf --overlap | --delayed | --own | --tune --die-in-trial 3 --built
    --undisturbed folder  # the same process first trains to the end there
    --copy folder  # goes on where it would die, and copies its backups there
"""

import argparse
import functools
import os
import pathlib
import shutil
import signal
import sys

import keras
import numpy as np
import tensorflow as tf

import tf_onebit
from tests.support.training import INPUTS, compiled, make_data

sys.path.insert(0, str(pathlib.Path("examples/your_own_exchange").resolve()))
from top_k import TopK  # noqa: E402

EPOCHS = 3  # but one where training is tuned
SAMPLES = 200
GLOBAL_BATCH_SIZE = 24  # does not divide the samples
TUNED_BATCH_SIZE = 8


class Noise(keras.layers.Layer):
    """A layer that draws from Keras' global generator."""

    def call(self, x, training=False):
        return x + keras.random.normal(tf.shape(x), stddev=0.1) if training else x


def make_model(options):
    """Returns a model that is not built before the first step, unless a strategy builds it.

    Then the first step makes variables, and TensorFlow traces it twice. With `--built` it does not.
    """
    model = keras.Sequential(
        [
            keras.layers.Dense(32, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.2, seed=3),
            # TensorFlow cannot make Keras' global generator on several devices.
            *([] if options.engine == "mirrored" else [Noise()]),
            keras.layers.Dense(10),
        ]
    )
    if options.built:
        model.build([None, INPUTS])
        keras.random.normal([1])  # makes Keras' global generator
    return model


class Shuffled(keras.utils.PyDataset):
    """Batches in an order that depends on the epochs before."""

    def __init__(self, x, labels, batch_size):
        super().__init__()
        self.x, self.labels, self.batch_size = x, labels, batch_size
        self.order = np.arange(len(x))

    def __len__(self):
        return len(self.x) // self.batch_size

    def __getitem__(self, index):
        rows = self.order[index * self.batch_size : (index + 1) * self.batch_size]
        return self.x[rows], self.labels[rows]

    def on_epoch_end(self):
        np.random.shuffle(self.order)


class Death(keras.callbacks.Callback):
    """A callback that calls `die` before a step."""

    def __init__(self, step, die):
        super().__init__()
        self.step, self.steps, self.die = step, 0, die

    def on_train_batch_begin(self, batch, logs=None):
        if self.steps == self.step:
            self.die()
        self.steps += 1


class DeathInTrial(tf_onebit.callbacks.AutoMinibatchSize):
    """A callback that calls `die` in the second step of a trial, counted from 1."""

    trials_left = -1
    die = None

    def _criterion(self, size):
        self.trials_left -= 1
        step, steps = self.model.train_function, []

        def dying(minibatch):
            steps.append(None)
            if len(steps) == 2:
                self.die()
            return step(minibatch)

        if self.trials_left == 0:
            self.model.train_function = dying
        criterion = super()._criterion(size)
        self.model.train_function = step
        return criterion


def tuning(data, validation_data, die_in_trial, die):
    """Returns callbacks that tune training, the first of which may die."""
    size = DeathInTrial(data, 96, trial_samples=96, multiple=2, error_margin=0.1)
    size.trials_left, size.die = die_in_trial, die
    rate = tf_onebit.callbacks.AutoLearningRate(validation_data, 60, min_improvement=0.1)
    return [size, rate]


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def die_at_file(number):
    """Makes the process die just before its flush of a file that has this number."""
    fsync, files = os.fsync, 0

    def counting(file):
        nonlocal files
        files += 1
        if files == number:
            die()
        fsync(file)

    os.fsync = counting


def make_strategy(options, exchange):
    if options.engine == "tensorflow":
        return tf_onebit.distribute.MultiWorkerMirroredStrategy(exchange)
    devices = [f"CPU:{index}" for index in range(options.devices)]
    return tf_onebit.distribute.MirroredStrategy(exchange, devices)


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", required=True)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--data", default="arrays")
    parser.add_argument("--directory", type=pathlib.Path, required=True)
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--undisturbed", type=pathlib.Path, help="trains there before")
    parser.add_argument("--save-freq", type=int, default=0)
    parser.add_argument("--steps-per-execution", type=int, default=1)
    parser.add_argument("--die-at", type=int, default=-1, help="step, counted from 0")
    parser.add_argument("--die-at-file", type=int, default=-1, help="of rank 0, from 1")
    parser.add_argument("--own", action="store_true", help="the exchange of examples")
    parser.add_argument("--delayed", action="store_true", help="double buffering")
    parser.add_argument("--bmuf", action="store_true", help="block momentum")
    parser.add_argument("--overlap", action="store_true", help="blocks end while training goes on")
    parser.add_argument("--tune", action="store_true", help="minibatch size and learning rate")
    parser.add_argument("--die-in-trial", type=int, default=-1, help="from 1")
    parser.add_argument("--copy", type=pathlib.Path, help="does not die, but copies backups there")
    parser.add_argument("--built", action="store_true", help="has the model built before it trains")
    return parser.parse_args()


def main():
    options = parse_arguments()
    if options.engine == "mirrored":
        cpu = tf.config.list_physical_devices("CPU")[0]
        parts = [tf.config.LogicalDeviceConfiguration()] * options.devices
        tf.config.set_logical_device_configuration(cpu, parts)
    if options.undisturbed:
        train(options, options.undisturbed / "backups", options.undisturbed, is_to_die=False)
        keras.utils.clear_session()
    train(options, options.directory, options.output, is_to_die=True)


def make_exchange(options):
    if options.bmuf:
        return tf_onebit.Local()
    if options.tune:
        # The state of each of these depends on the size of minibatches.
        adagrad = tf_onebit.transforms.NormalizedAdaGrad(100, TUNED_BATCH_SIZE)
        delayed = tf_onebit.Delayed(tf_onebit.OneBit(min_size=0, transforms=[adagrad]))
        return tf_onebit.WarmStart(delayed, samples=90, global_batch_size=TUNED_BATCH_SIZE)
    exchange = TopK(k=5) if options.own else tf_onebit.OneBit(min_size=0)
    if options.delayed:
        exchange = tf_onebit.Delayed(exchange)
    return tf_onebit.WarmStart(exchange, steps=4)


def samples(count=SAMPLES):
    return tuple(a.reshape(-1, *a.shape[3:])[:count] for a in make_data(SAMPLES // 16 + 1, 1))


def make_data_of_fit(options, rank, parts):
    """Returns the arguments of `fit`, with the data of one worker of several."""
    x, labels = samples()
    if options.tune:  # all workers have all of the data
        return {"x": tf_onebit.ResizableBatches((x, labels), TUNED_BATCH_SIZE, seed=5)}
    x, labels = x[rank % parts :: parts], labels[rank % parts :: parts]
    batch_size = GLOBAL_BATCH_SIZE // parts
    if options.data == "arrays":
        return {"x": x, "y": labels, "batch_size": batch_size}
    if options.data == "sequence":
        # Both shuffle after every epoch, with the same generator.
        validation_data = Shuffled(x[:64], labels[:64], batch_size)
        return {"x": Shuffled(x, labels, batch_size), "validation_data": validation_data}
    dataset = tf.data.Dataset.from_tensor_slices((x, labels)).shuffle(SAMPLES, seed=5)
    return {"x": dataset.batch(batch_size)}


def train(options, directory, output, is_to_die):
    """Trains with backups in `directory`, and saves the final arrays of this worker in `output`."""
    output.mkdir(exist_ok=True)
    exchange = make_exchange(options)
    arguments = {"metrics": ["accuracy"], "steps_per_execution": options.steps_per_execution}
    adam = tf_onebit.optimizers.Adam if options.bmuf else keras.optimizers.Adam
    if options.engine in ("tensorflow", "mirrored"):
        strategy = make_strategy(options, exchange)
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = compiled(make_model(options), adam(0.01), **arguments)
        rank, parts = strategy.extended.engine.ranks[0], 1  # it divides the data itself
    elif options.engine == "horovod":
        import tf_onebit.horovod as hvd

        hvd.init()
        keras.utils.set_random_seed(1)
        optimizer = hvd.DistributedOptimizer(adam(0.01), exchange)
        model = compiled(make_model(options), optimizer, **arguments)
        rank, parts = hvd.rank(), hvd.size()
    else:
        keras.utils.set_random_seed(1)
        model = compiled(make_model(options), adam(0.01), **arguments)
        rank, parts = 0, 1

    data = make_data_of_fit(options, rank, parts)
    callbacks = [tf_onebit.callbacks.BackupAndRestore(directory, options.save_freq or "epoch")]
    if options.bmuf:
        one_bit = tf_onebit.OneBit(min_size=0)
        late = {"fragments": 2, "overlap": 4} if options.overlap else {}
        callbacks.insert(0, tf_onebit.callbacks.BlockMomentum(4, exchange=one_bit, **late))
    if options.copy:  # by the worker that names a backup when it is complete
        dies, end = rank == 0, functools.partial(shutil.copytree, directory, options.copy)
    else:
        dies, end = rank == parts - 1 or options.engine == "tensorflow", die
    dies = dies and is_to_die
    if options.tune:
        trial = options.die_in_trial if dies else -1
        callbacks += tuning(data["x"], samples(64), trial, end)
    if dies:
        callbacks.append(Death(options.die_at, end))
    if is_to_die and rank == 0:
        die_at_file(options.die_at_file)
    epochs = 1 if options.tune else EPOCHS
    history = model.fit(**data, epochs=epochs, verbose=0, callbacks=callbacks).history
    arrays = [v.numpy() for v in (*model.weights, *model.optimizer.variables)]
    np.savez(output / f"{rank}.npz", history["loss"][-1], *arrays)


if __name__ == "__main__":
    main()
