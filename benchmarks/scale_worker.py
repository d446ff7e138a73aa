"""One worker of `scale.py`: trains the papers' DNN, and prints what it and its node have sent."""

import argparse
import collections
import json
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
    training_step,
    weights_checksum,
)

import tf_onebit.horovod as hvd
from tf_onebit import FullPrecision, OneBit, Threshold

SAMPLES = 8  # of each worker: few, because messages are what is measured
EXCHANGES = {
    "full": lambda size: FullPrecision(),
    "one_bit": lambda size: OneBit(max_column_size=size),
    "threshold": lambda size: Threshold(target_density=0.01),
}


def collectives_in(graph):
    """Returns the number of Horovod's collectives in a graph, by kind: dictionary."""
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    return collections.Counter(node.op for node in nodes if node.op.startswith("Horovod"))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--exchange", choices=EXCHANGES, required=True)
    parser.add_argument("--groups", choices=["node", "none"], required=True)
    parser.add_argument("--hidden", required=True)
    parser.add_argument("--optimizer", required=True)
    parser.add_argument("--max-column-size", type=int, required=True)
    parser.add_argument("--interface", required=True)
    parser.add_argument("--warm-up", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    arguments = parser.parse_args()

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    hvd.init(process_sets="dynamic")
    model = make_model(arguments.hidden)
    optimizer = hvd.DistributedOptimizer(
        make_optimizer(arguments.optimizer),
        EXCHANGES[arguments.exchange](arguments.max_column_size),
        groups="node" if arguments.groups == "node" else None,
    )
    optimizer.build(model.trainable_variables)
    random = np.random.default_rng(hvd.rank())
    features = tf.constant(random.standard_normal((SAMPLES, NUM_FEATURES), np.float32))
    labels = tf.constant(random.integers(0, NUM_CLASSES, SAMPLES, np.int32))
    train_step = training_step(model, optimizer, features, labels)
    for _ in range(arguments.warm_up):
        train_step().numpy()
    hvd.allreduce(0.0, name="all_ready")
    counter = pathlib.Path(f"/sys/class/net/{arguments.interface}/statistics/tx_bytes")
    sent_before, cpu_before, step_seconds = int(counter.read_text()), time.process_time(), []
    for _ in range(arguments.steps):
        start = time.perf_counter()
        loss = float(train_step().numpy())
        step_seconds.append(time.perf_counter() - start)
    cpu_seconds = time.process_time() - cpu_before
    hvd.allreduce(0.0, name="all_done")
    uplink_bytes = int(counter.read_text()) - sent_before
    result = {
        "step_seconds": step_seconds,
        "losses": [loss],
        "weights_checksum": weights_checksum(model),
        "model_values": model.count_params(),
        "cpu_seconds_per_step": cpu_seconds / arguments.steps,
        "uplink_bytes_per_step": uplink_bytes / arguments.steps,
        "bytes_sent": sum(e.bytes_sent() for e in optimizer.gradient_exchange.built),
        "collectives": collectives_in(train_step.get_concrete_function().graph),
    }
    print(json.dumps(result))
    hvd.shutdown()


if __name__ == "__main__":
    main()
