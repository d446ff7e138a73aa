"""One worker of `model_parallel.py`: trains the papers' DNN in groups, and prints its figures."""

import argparse
import json
import math
import os
import pathlib
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from step_worker import (
    NUM_CLASSES,
    NUM_FEATURES,
    make_model,
    make_optimizer,
    peak_memory_bytes,
    training_step,
)

import tf_onebit.horovod as hvd
from tf_onebit import OneBit, model_parallel


def held_bytes(model, optimizer):
    """Returns the bytes that this worker holds of the model, by what they are for: dictionary."""
    residuals = [v for e in optimizer.gradient_exchange.built for v in e.variables]
    held = {
        "weights": model.variables,
        "gradients": model.trainable_variables,
        "state of the optimizer": optimizer.variables,
        "residuals": residuals,
    }
    return {
        what: sum(math.prod(v.shape) * tf.as_dtype(v.dtype).size for v in variables)
        for what, variables in held.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, required=True, help="processes of a group")
    parser.add_argument("--samples", type=int, required=True, help="of all groups together")
    parser.add_argument("--parts", type=int, required=True, help="of a batch, one after another")
    parser.add_argument("--hidden", required=True)
    parser.add_argument("--optimizer", required=True)
    parser.add_argument("--interface", required=True)
    parser.add_argument("--steps", type=int, required=True)
    arguments = parser.parse_args()

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    hvd.init(process_sets="dynamic")
    groups = model_parallel.Groups(arguments.members)
    model = model_parallel.split(make_model(arguments.hidden), groups)
    optimizer = hvd.DistributedOptimizer(make_optimizer(arguments.optimizer), exchange=OneBit())
    optimizer.build(model.trainable_variables)

    random = np.random.default_rng(groups.number)
    samples = arguments.samples // groups.count
    features = tf.constant(random.standard_normal((samples, NUM_FEATURES), np.float32))
    labels = tf.constant(random.integers(0, NUM_CLASSES, samples, np.int32))
    train_step = training_step(model, optimizer, features, labels, arguments.parts)
    for _ in range(3):
        train_step().numpy()
    hvd.allreduce(0.0, name="all_ready")
    counter = pathlib.Path(f"/sys/class/net/{arguments.interface}/statistics/tx_bytes")
    sent_before, step_seconds, losses = int(counter.read_text()), [], []
    for _ in range(arguments.steps):
        start = time.perf_counter()
        losses.append(float(train_step().numpy()))
        step_seconds.append(time.perf_counter() - start)
    hvd.allreduce(0.0, name="all_done")
    result = {
        "step_seconds": step_seconds,
        "losses": losses,
        "interface_bytes_per_step": (int(counter.read_text()) - sent_before) / arguments.steps,
        "peak_memory_bytes": peak_memory_bytes(),
        "held_bytes": held_bytes(model, optimizer),
        # Each layer's outputs of all samples.
        "activation_bytes": 4 * samples * sum(layer.units for layer in model.layers),
    }
    print(json.dumps(result))
    hvd.shutdown()


if __name__ == "__main__":
    main()
