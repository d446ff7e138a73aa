"""Trains on two nodes of two processes each, which are workers of block momentum as nodes.

python -m tests.parallel.train_on_nodes --output folder
"""

import argparse
import pathlib

import keras
import numpy as np
import tensorflow as tf

import tf_onebit
import tf_onebit.horovod as hvd
from tests.parallel.blocks import Lockstep
from tests.parallel.training import INPUTS, compiled, make_data, with_layer

STEPS, EPOCHS, PERIOD, ETA = 5, 2, 2, 0.5
NODES, PROCESSES = 2, 2  # on each

normalized_model = with_layer(keras.layers.BatchNormalization)


class Seen(keras.layers.Layer):
    """Keeps a statistic that depends on samples one by one, and changes nothing."""

    def build(self, shape):
        self.mean = self.add_weight(shape=shape[1:], initializer="zeros", trainable=False)

    def call(self, x):
        self.mean.assign(0.5 * (self.mean + tf.reduce_mean(x, axis=0)))
        return x


seeing_model = with_layer(Seen)


def adam():
    return tf_onebit.optimizers.Adam(0.01, beta_1=0.5)


def train(make, exchange, block_exchange):
    """The variables that this process ends with."""
    model = compiled(make(), hvd.DistributedOptimizer(adam(), exchange=exchange))
    x, labels = (array[:, hvd.rank()] for array in make_data(STEPS, NODES * PROCESSES))
    block_momentum = tf_onebit.callbacks.BlockMomentum(
        PERIOD, ETA, groups="node", exchange=block_exchange
    )
    data = tf.data.Dataset.from_tensor_slices((x, labels))
    model.fit(data, epochs=EPOCHS, verbose=0, callbacks=[block_momentum])
    return [np.array(v) for v in model.variables]


def in_one_process():
    """Two workers, each with the batches of a node."""
    x, labels = make_data(STEPS, NODES * PROCESSES)
    x, labels = x.reshape(STEPS, NODES, -1, INPUTS), labels.reshape(STEPS, NODES, -1)
    batches = [[(x[i, node], labels[i, node]) for i in range(STEPS)] for node in range(NODES)]
    lockstep = Lockstep(seeing_model, adam, NODES, ETA)
    return [lockstep.epoch(batches, PERIOD) for _ in range(EPOCHS)][-1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=pathlib.Path, required=True)
    options = parser.parse_args()
    hvd.init(process_sets="dynamic")
    assert (hvd.cross_size(), hvd.local_size()) == (NODES, PROCESSES)
    one_bit = tf_onebit.OneBit(min_size=0)
    runs = {
        "exact": train(seeing_model, tf_onebit.FullPrecision(), None),
        "one_bit": train(normalized_model, one_bit, one_bit),
    }
    if hvd.rank() == 0:
        runs["expected"] = in_one_process()
    for name, arrays in runs.items():
        np.savez(options.output / f"{name}_{hvd.rank()}.npz", *arrays)


if __name__ == "__main__":
    main()
