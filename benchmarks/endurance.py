"""Checks that memory and threads do not grow over 10,000 steps of `fit` in a strategy's scope.

    .venv/bin/tf-onebit launch -np 2 -- .venv/bin/python benchmarks/endurance.py
    .venv/bin/python benchmarks/endurance.py --engine mirrored

The first 10,000 steps do not count. The model has all kinds of messages: 1-bit, full precision, and
an embedding's, whose length differs from step to step. A single allocation is not growth:
TensorFlow starts another thread of a pool when all are busy at once, which may happen late.
"""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import psutil
import tensorflow as tf
from report import machine_facts, print_machine_facts, print_table, verdict, write_json

import tf_onebit

SAMPLES_PER_STEP = 32
WORDS = 1000
WARM_UP = 0.5  # of the steps
READINGS = 20
MOST_BYTES_PER_STEP = 50


class Readings(keras.callbacks.Callback):
    """A callback that reads memory and threads of all workers together from time to time."""

    def __init__(self, strategy, interval):
        super().__init__()
        self.strategy, self.interval = strategy, interval
        self.rows = []
        self._process = psutil.Process()

    def on_train_batch_end(self, batch, logs=None):
        if (batch + 1) % self.interval == 0:
            mine = [self._process.memory_info().rss, self._process.num_threads()]
            is_one_process = isinstance(self.strategy, tf.distribute.MirroredStrategy)
            if not is_one_process:
                mine = self.strategy.reduce("SUM", tf.constant(mine, tf.int64), axis=None)
            self.rows.append([batch + 1, *np.array(mine).tolist()])


def connect(engine):
    exchange = tf_onebit.OneBit()
    if engine == "multi_worker":
        return tf_onebit.distribute.MultiWorkerMirroredStrategy(exchange)
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    return tf_onebit.distribute.MirroredStrategy(exchange, ["CPU:0", "CPU:1"])


def make_model():
    layers = [
        keras.layers.Embedding(WORDS, 16),
        keras.layers.Flatten(),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(64),
    ]
    model = keras.Sequential([keras.Input((16,), dtype="int32"), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-4), loss)
    return model


def make_batches(steps):
    random = np.random.default_rng(0)
    # Words of one batch repeat more often than words of the other.
    words = [random.integers(0, limit, (SAMPLES_PER_STEP, 16), np.int32) for limit in (9, WORDS)]
    labels = random.integers(0, 64, (2, SAMPLES_PER_STEP), np.int32)
    data = tf.data.Dataset.from_tensor_slices((np.concatenate(words), np.concatenate(labels)))
    return data.shuffle(64, seed=0).repeat().batch(SAMPLES_PER_STEP).take(steps)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", choices=["multi_worker", "mirrored"], default="multi_worker")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--output", default="results/endurance.json")
    arguments = parser.parse_args()
    if arguments.steps < READINGS:
        parser.error(f"memory is read {READINGS} times: give --steps {READINGS} or more")

    facts = machine_facts()
    strategy = connect(arguments.engine)
    with strategy.scope():
        keras.utils.set_random_seed(0)
        model = make_model()
    readings = Readings(strategy, arguments.steps // READINGS)
    model.fit(make_batches(arguments.steps), verbose=0, callbacks=[readings])
    if strategy.extended.engine.ranks[0] != 0:
        return

    print_machine_facts(facts)
    rows = readings.rows
    table = [[f"{step:,}", f"{rss / 1e6:.1f}", str(threads)] for step, rss, threads in rows]
    print_table("All workers together", ["steps", "MB", "threads"], table)
    steps, rss, threads = np.array([row for row in rows if row[0] >= WARM_UP * arguments.steps]).T
    # A fitted line is used, because one reading more or less says little.
    workers = strategy.num_replicas_in_sync
    growth = np.polyfit(steps, rss, 1)[0] / workers
    verdicts = [
        verdict("bytes of memory that a worker grows by per step", growth, MOST_BYTES_PER_STEP),
        verdict("threads more at the end, per worker", (threads[-1] - threads[0]) / workers, 1),
    ]
    content = {"machine": facts, "arguments": vars(arguments), "readings": rows}
    write_json(arguments.output, content | {"verdicts": verdicts})


if __name__ == "__main__":
    main()
