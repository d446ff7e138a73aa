"""Measures the cost of the Monitor callback: Keras' fit with and without it, on two workers.

    .venv/bin/horovodrun -np 2 .venv/bin/python benchmarks/monitor.py

The network is the speech job's, 429 - 5x512 - 1200, with 128 samples per worker. Readings cost most
where steps are short. Each worker has a core of its own: workers that share cores disturb each
other by more than the measured effect. Monitor reads at its default interval and writes
TensorBoard scalars. A part of its cost is spent inside of it. The rest is spent on recording times
in the graph, and shows only in the ratio of fits. Training steps are traced before.
"""

import argparse
import os
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from pinned import pin
from report import Spread, machine_facts, print_machine_facts, print_table, verdict, write_json

import tf_onebit
import tf_onebit.horovod as hvd

NUM_FEATURES = 429
HIDDEN_LAYERS = 5 * [512]
NUM_CLASSES = 1200
SAMPLES_PER_WORKER = 128
LIMIT = 0.01  # of the step


class TimedMonitor(tf_onebit.callbacks.Monitor):
    """A Monitor that measures its own time."""

    seconds = 0.0

    def on_train_batch_end(self, batch, logs=None):
        start = time.perf_counter()
        super().on_train_batch_end(batch, logs)
        self.seconds += time.perf_counter() - start

    def on_epoch_end(self, epoch, logs=None):
        start = time.perf_counter()
        super().on_epoch_end(epoch, logs)
        self.seconds += time.perf_counter() - start


def make_model():
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(units, activation="relu") for units in HIDDEN_LAYERS]
    model = keras.Sequential(
        [keras.Input((NUM_FEATURES,)), *layers, keras.layers.Dense(NUM_CLASSES)]
    )
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), exchange=tf_onebit.OneBit()),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


def make_batches(steps):
    random = np.random.default_rng(hvd.rank())
    features = random.standard_normal((SAMPLES_PER_WORKER, NUM_FEATURES), np.float32)
    labels = random.integers(0, NUM_CLASSES, SAMPLES_PER_WORKER, np.int32)
    options = tf.data.Options()
    # Its thread sleeps for 10, 20, 40 ms and so on, and a `fit` would wait for it at the end.
    options.autotune.enabled = False
    batches = tf.data.Dataset.from_tensors((features, labels)).repeat(steps)
    return batches.with_options(options)


def fit_seconds(model, batches, callbacks):
    start = time.perf_counter()
    model.fit(batches, callbacks=callbacks, verbose=0)
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100, help="of each fit")
    parser.add_argument("--rounds", type=int, default=110, help="fits with and without Monitor")
    parser.add_argument("--output", default="results/monitor.json")
    arguments = parser.parse_args()

    facts = machine_facts()
    pin()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    hvd.init()
    model, batches = make_model(), make_batches(arguments.steps)

    without, ratios, shares = [], [], []
    with tempfile.TemporaryDirectory() as log_dir:
        monitor = TimedMonitor(log_dir=log_dir)
        for callbacks in ([], [monitor]):
            model.fit(batches, callbacks=callbacks, verbose=0)
        for number in range(arguments.rounds):
            monitor.seconds, seconds = 0.0, {}
            # The order within a round alternates.
            for is_watched in (number % 2 == 0, number % 2 == 1):
                callbacks = [monitor] if is_watched else []
                seconds[is_watched] = fit_seconds(model, batches, callbacks)
            without.append(1e3 * seconds[False] / arguments.steps)
            ratios.append(seconds[True] / seconds[False])
            shares.append(monitor.seconds / seconds[False])

    if hvd.rank() == 0:
        print_machine_facts(facts)
        step, share, ratio = Spread.of(without), Spread.of(shares), Spread.of(ratios)
        table = [
            ["ms per step without Monitor", step.text()],
            ["time inside Monitor, over that of the steps", share.text(4)],
            ["fit with Monitor, over fit without", ratio.text(3)],
        ]
        print_table(f"{hvd.size()} workers, medians [quartiles]", ["", ""], table)
        verdicts = [
            verdict("time inside Monitor over that of the steps", share.median, LIMIT),
            verdict("fit with Monitor over fit without", ratio.median, 1 + LIMIT),
        ]
        content = {"machine": facts, "arguments": vars(arguments), "verdicts": verdicts}
        spreads = {"milliseconds_per_step": step, "share": share, "ratio": ratio}
        content |= {name: spread._asdict() for name, spread in spreads.items()}
        write_json(arguments.output, content)
    hvd.shutdown()


if __name__ == "__main__":
    main()
