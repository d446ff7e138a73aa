"""Measures the time of minibatches: `ResizableBatches` and plain `tf.data`, in turns.

    .venv/bin/python benchmarks/data_rate.py

One function reads both, compiled as Keras compiles a step. It takes an iterator, draws a minibatch
and adds up its first column. `tf.data` is from_tensor_slices, a shuffle of all samples, batch and
prefetch(AUTOTUNE). Its shuffle buffer is full before the clock starts.
"""

import argparse
import itertools
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from report import Spread, machine_facts, print_machine_facts, print_table, verdict, write_json

import tf_onebit

NUM_FEATURES = 440
NUM_CLASSES = 1200
SIZES = [64, 128, 256, 1024, 4096]
LIMIT = 0.95  # of the rate of tf.data


@tf.function(reduce_retracing=True)
def step(iterator):
    x, labels = iterator.get_next()
    total = tf.reduce_sum(x[:, 0]) + tf.cast(tf.reduce_sum(labels), tf.float32)
    return tf.experimental.Optional.from_value(total)


def seconds_per_batch(iterators, batches):
    """Returns the seconds of a minibatch, over all except the first."""
    iterators = iter(iterators)
    step(next(iterators))
    start = time.perf_counter()
    for iterator in itertools.islice(iterators, batches):
        step(iterator).get_value()
    return (time.perf_counter() - start) / batches


def resizable(arrays, size):
    return tf_onebit.ResizableBatches(arrays, size, seed=0).steps()


def plain(arrays, size):
    dataset = tf.data.Dataset.from_tensor_slices(arrays).shuffle(len(arrays[0]), seed=0)
    return itertools.repeat(iter(dataset.batch(size).prefetch(tf.data.AUTOTUNE)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=40_000, help="of the data")
    parser.add_argument("--rounds", type=int, default=5, help="of each, per size")
    parser.add_argument("--output", default="results/data_rate.json")
    arguments = parser.parse_args()

    facts = machine_facts()
    random = np.random.default_rng(0)
    arrays = (
        random.standard_normal((arguments.samples, NUM_FEATURES), np.float32),
        random.integers(0, NUM_CLASSES, arguments.samples, np.int32),
    )
    table, ratios, content = [], {}, {}
    for size in SIZES:
        batches = min(arguments.samples // size - 2, 200)
        seconds = {resizable: [], plain: []}
        for _ in range(arguments.rounds):
            for make in seconds:
                seconds[make].append(seconds_per_batch(make(arrays, size), batches))
        rates = {make: Spread.of(1 / np.array(times)) for make, times in seconds.items()}
        ratio = Spread.of(np.array(seconds[plain]) / np.array(seconds[resizable]))
        ratios[size] = ratio.median
        spreads = [rates[resizable], rates[plain]]
        table.append([str(size), *(spread.text(0) for spread in spreads), ratio.text(2)])
        content[size] = dict(
            zip(
                ["batches_per_second", "batches_per_second_of_tf_data", "ratio"],
                [spread._asdict() for spread in (*spreads, ratio)],
                strict=True,
            )
        )

    print_machine_facts(facts)
    header = ["samples", "ResizableBatches", "tf.data", "ratio"]
    print_table("minibatches per second, medians [quartiles]", header, table)
    verdicts = [
        verdict(f"rate over that of tf.data, {size} samples", ratio, LIMIT, at_most=False)
        for size, ratio in ratios.items()
    ]
    write_json(
        arguments.output,
        {"machine": facts, "arguments": vars(arguments), "sizes": content, "verdicts": verdicts},
    )


if __name__ == "__main__":
    main()
