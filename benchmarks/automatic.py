"""Measures the cost of the search for the minibatch size, relative to training without it.

    .venv/bin/python benchmarks/automatic.py

Trains a network on scikit-learn's digits, with noise added to make many of them. A trial is 2 % of
the interval, as by default. In a second run the interval is three times as long, with the same
trial. A search tries up to five sizes. So trials add up to 10 % of the samples, or 3.3 %.
"""

import argparse
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
from report import machine_facts, print_machine_facts, print_table, verdict, write_json
from sklearn import datasets

import tf_onebit
from tf_onebit.callbacks import AutoMinibatchSize

LIMITS = {1: 0.12, 3: 0.05}  # by how much less often than by default
SEARCHES = 4


class Timed(AutoMinibatchSize):
    """A search that measures its own time, including the wait for an epoch that is long enough."""

    seconds = 0.0

    def on_train_batch_begin(self, batch, logs=None):
        start = time.perf_counter()
        super().on_train_batch_begin(batch, logs)
        self.seconds += time.perf_counter() - start


class Clock(keras.callbacks.Callback):
    """A clock that starts with the second step, because the first is traced."""

    start = None

    def on_train_batch_end(self, batch, logs=None):
        if self.start is None:
            self.start = time.perf_counter()


def digits(samples):
    x, labels = datasets.load_digits(return_X_y=True)
    random = np.random.default_rng(0)
    rows = random.integers(0, len(x), samples)
    noisy = x[rows] / 16 + random.normal(0, 0.5, (samples, x.shape[1]))
    return noisy.astype(np.float32), labels[rows]


def train(data, interval, trial):
    """Returns the time of the search relative to the rest of the training, and the callback."""
    keras.utils.set_random_seed(0)
    hidden = [keras.layers.Dense(256, activation="relu") for _ in range(2)]
    model = keras.Sequential([keras.Input((64,)), *hidden, keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.02, momentum=0.9), loss, metrics=["accuracy"])
    batches = tf_onebit.ResizableBatches(data, 64, seed=0)
    tuning, clock = Timed(batches, interval, trial, monitor="accuracy"), Clock()
    model.fit(batches, epochs=SEARCHES + 1, callbacks=[tuning, clock], verbose=0)
    total = time.perf_counter() - clock.start
    return tuning.seconds / (total - tuning.seconds), tuning


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--interval", type=int, default=200_000, help="samples between searches")
    parser.add_argument("--plot", default="results/automatic_{}.png", help="of sizes over samples")
    parser.add_argument("--output", default="results/automatic.json")
    arguments = parser.parse_args()

    facts = machine_facts()
    trial = arguments.interval // 50
    rows, verdicts, content = [], [], {}
    for less_often, limit in LIMITS.items():
        interval = less_often * arguments.interval
        share, tuning = train(digits(interval), interval, trial)
        sizes = tuning.history["global_batch_size"]
        tried = [len(trials) for trials in tuning.history["trials"]][1:]
        rows.append([str(interval), f"{100 * share:.1f} %", str(tried), str(sizes)])
        content[interval] = {"share": share, "history": tuning.history}
        claim = f"time of the search over that of training, every {interval} samples"
        verdicts.append((claim, share, limit))
        os.makedirs(os.path.dirname(arguments.plot) or ".", exist_ok=True)
        tuning.plot(arguments.plot.format(interval))

    print_machine_facts(facts)
    print_table(
        f"search with trials of {trial} samples",
        ["interval", "time", "sizes tried", "minibatch sizes"],
        rows,
    )
    verdicts = [verdict(*each) for each in verdicts]
    write_json(
        arguments.output,
        {"machine": facts, "arguments": vars(arguments), "runs": content, "verdicts": verdicts},
    )


if __name__ == "__main__":
    main()
