"""Trains in blocks on two nodes, each with two processes or with one process of two devices.

python -m tests.parallel.train_on_nodes --engine horovod | tensorflow --output folder
"""

import argparse
import pathlib

import keras
import numpy as np
import tensorflow as tf

import tf_onebit
import tf_onebit.horovod as hvd
from tests.support.blocks import Lockstep
from tests.support.training import BATCH_SIZE, INPUTS, compiled, make_data, with_layer
from tests.support.two_optimizers import Gan

STEPS, EPOCHS, PERIOD, ETA = 5, 2, 2, 0.5
NODES, REPLICAS = 2, 2  # on each


class Seen(keras.layers.Layer):
    """A layer that keeps a statistic of its samples, one by one, and changes nothing."""

    def build(self, shape):
        self.mean = self.add_weight(shape=shape[1:], initializer="zeros", trainable=False)

    def call(self, x):
        self.mean.assign(0.5 * (self.mean + tf.reduce_mean(x, axis=0)))
        return x


seeing_model = with_layer(Seen)


def adam():
    return tf_onebit.optimizers.Adam(0.01, beta_1=0.5)


def train():
    """Returns the final variables of this process, one of two on its node."""
    model = compiled(seeing_model(), hvd.DistributedOptimizer(adam(), tf_onebit.FullPrecision()))
    return fit(model, batches(hvd.rank(), 1), groups="node")


def train_gan():
    """Returns the same for a model with two optimizers, and one bit within nodes and between."""
    keras.utils.set_random_seed(hvd.rank())
    model, exchange = Gan(width=INPUTS), tf_onebit.OneBit(min_size=0)
    model.compile(*(hvd.DistributedOptimizer(adam(), exchange=exchange) for _ in range(2)))
    fit(model, batches(hvd.rank(), 1).map(lambda x, _: x), groups="node", exchange=exchange)
    return [np.array(v) for v in model.variables if "seed" not in v.path]


def train_in_scope():
    """Returns the rank and final variables of this process, which has all devices of its node."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    parts = [tf.config.LogicalDeviceConfiguration()] * REPLICAS
    tf.config.set_logical_device_configuration(cpu, parts)
    strategy = tf_onebit.distribute.MultiWorkerMirroredStrategy(tf_onebit.Local())
    with strategy.scope():
        model = compiled(seeing_model(), adam())
    data = strategy.distribute_datasets_from_function(
        lambda context: batches(context.input_pipeline_id * REPLICAS, REPLICAS)
    )
    return strategy.extended.engine.ranks[0], fit(model, data)


def batches(first, count):
    """Returns the batches of some replicas, which take turns."""
    x, labels = (array[:, first : first + count] for array in make_data(STEPS, NODES * REPLICAS))
    samples = x.reshape(-1, INPUTS), labels.reshape(-1)
    return tf.data.Dataset.from_tensor_slices(samples).batch(BATCH_SIZE)


def fit(model, data, **arguments):
    block_momentum = tf_onebit.callbacks.BlockMomentum(PERIOD, ETA, **arguments)
    model.fit(data, epochs=EPOCHS, verbose=0, callbacks=[block_momentum])
    return [np.array(v) for v in model.variables]


def in_one_process():
    """Returns the result of two workers in one process, each with the batches of a node."""
    x, labels = make_data(STEPS, NODES * REPLICAS)
    x, labels = x.reshape(STEPS, NODES, -1, INPUTS), labels.reshape(STEPS, NODES, -1)
    batches = [[(x[i, node], labels[i, node]) for i in range(STEPS)] for node in range(NODES)]
    lockstep = Lockstep(seeing_model, adam, NODES, ETA)
    return [lockstep.epoch(batches, PERIOD) for _ in range(EPOCHS)][-1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", required=True)
    parser.add_argument("--output", type=pathlib.Path, required=True)
    options = parser.parse_args()
    if options.engine == "tensorflow":
        rank, arrays = train_in_scope()
        runs = {"exact": arrays}
    else:
        hvd.init(process_sets="dynamic")
        assert (hvd.cross_size(), hvd.local_size()) == (NODES, REPLICAS)
        runs = {"exact": train(), "gan": train_gan()}
        rank = hvd.rank()
        if rank == 0:
            runs["expected"] = in_one_process()
    for name, arrays in runs.items():
        np.savez(options.output / f"{name}_{rank}.npz", *arrays)


if __name__ == "__main__":
    main()
