"""Trains in a job of any engine, and saves the weights.

python -m tests.parallel.train_on_engine
    --engine horovod | tensorflow | mirrored --devices 1 --output folder
    --runs 4:density 4:buckets  # numbers of replicas of all workers together; and cases
"""

import argparse
import pathlib

import keras
import numpy as np
import tensorflow as tf

import tf_onebit
from tests.support.training import BATCH_SIZE, INPUTS, compiled, make_data, make_model
from tf_onebit import transforms
from tf_onebit.optimizers import NormalizedAdaGrad

STEPS = 5
CASES = {
    "buckets": (lambda: keras.optimizers.Adam(0.01), tf_onebit.OneBit(bucket_bytes=4096)),
    "adagrad": (
        lambda: NormalizedAdaGrad(0.1, 500, 64, momentum=0.5),
        tf_onebit.WarmStart(
            tf_onebit.OneBit(
                transforms=[transforms.NormalizedAdaGrad(500, 64), transforms.Momentum(0.5)],
                local_transforms=[transforms.Momentum(0.5, nesterov=True)],
                bucket_bytes=4096,
            ),
            samples=128,
            global_batch_size=64,
        ),
    ),
    "delayed": (
        lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2, clipnorm=0.1),
        tf_onebit.WarmStart(tf_onebit.Delayed(tf_onebit.OneBit(bucket_bytes=4096)), steps=1),
    ),
    "full_precision": (lambda: keras.optimizers.Adam(0.01), tf_onebit.FullPrecision()),
    "threshold": (
        lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        tf_onebit.Threshold(0.01, coding="golomb_rice"),
    ),
    "density": (
        lambda: keras.optimizers.Adam(0.01),
        tf_onebit.Threshold(target_density=0.05, bucket_bytes=8192),
    ),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", required=True)
    parser.add_argument("--devices", type=int, default=1, help="of each process, at most")
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--runs", nargs="+", required=True)
    options = parser.parse_args()
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * options.devices,
    )
    fit = fit_over_horovod if options.engine == "horovod" else fit_in_scope
    for run in options.runs:
        replicas, name = run.split(":")
        rank, weights = fit(options, int(replicas), *CASES[name])
        np.savez(options.output / f"{run}_{rank}.npz", *weights)


def fit_over_horovod(options, replicas, make_optimizer, exchange):
    import tf_onebit.horovod as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(make_optimizer(), exchange)
    model = compiled(make_model(), optimizer)
    model.fit(batches(replicas, hvd.rank(), 1), verbose=0)
    return hvd.rank(), model.get_weights()


def fit_in_scope(options, replicas, make_optimizer, exchange):
    devices = min(options.devices, replicas)
    if options.engine == "mirrored":
        names = [f"CPU:{index}" for index in range(devices)]
        strategy = tf_onebit.distribute.MirroredStrategy(exchange, names)
    else:
        strategy = tf_onebit.distribute.MultiWorkerMirroredStrategy(exchange)
    with strategy.scope():
        model = compiled(make_model(), make_optimizer())

    def mine(context):
        return batches(replicas, context.input_pipeline_id * devices, devices)

    model.fit(strategy.distribute_datasets_from_function(mine), verbose=0)
    rank = strategy.extended.engine.ranks[0]
    if devices == 1:
        gathered = strategy.gather(tf.constant([rank]), axis=0)
        assert gathered.numpy().tolist() == list(range(replicas))
    return rank, model.get_weights()


def batches(replicas, first, count):
    """Returns the batches of `count` replicas, which take turns."""
    x, labels = (array[:, first : first + count] for array in make_data(STEPS, replicas))
    samples = x.reshape(-1, INPUTS), labels.reshape(-1)
    return tf.data.Dataset.from_tensor_slices(samples).batch(BATCH_SIZE)


if __name__ == "__main__":
    main()
