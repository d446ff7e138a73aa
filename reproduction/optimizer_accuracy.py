"""Accuracy with optimizers that have moments, of each worker or of exchanged gradients.

A model learns on several workers, once for each row, learning rate and seed. The workers are
devices of one process, and run the code that jobs run. A row counts with its best rate. The tasks:

* "mlp" and "cnn": a network of two hidden layers, or one with convolutions and BatchNormalization,
  learns Fashion-MNIST. The data come with Debian's package dataset-fashion-mnist, 31 MB:
  `apt-get install dataset-fashion-mnist`.
* "transformer": a Transformer of 1.3 million weights learns the next character in the sources of
  Python's standard library.
"""

import argparse
import dataclasses
import json
import math
import pathlib
import time
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from accuracy_tasks import FASHION, TASKS
from intervals import CONFIDENCE, TOLERANCE_POINTS, interval
from peer_exchanges import DeepGradientCompression, OneBitAdam, PowerSGD
from report import machine_facts, print_machine_facts, print_table, verdict, write_json

import tf_onebit
from tf_onebit import OneBit, Threshold, WarmStart

WARM_PART = 0.1  # of the steps exchange in full precision
STEPS_PER_CALL = 26

OPTIMIZERS = {
    "sgd": lambda rate: keras.optimizers.SGD(rate),
    "momentum": lambda rate: keras.optimizers.SGD(rate, momentum=0.9),
    "adam": lambda rate: keras.optimizers.Adam(rate),
    "adamw": lambda rate: keras.optimizers.AdamW(rate),
}


@dataclasses.dataclass(frozen=True)
class Row:
    """A way to exchange what workers learn.

    Attributes:
        exchange: function from the number of warm-up steps to an exchange.
        optimizers: names of the optimizers that it works with, or that it stands for.
        has_moments: whether it averages gradients itself. Plain SGD then uses what it returns.
        most_points, most_nats: what we claim that it loses at most, or None.
    """

    exchange: Callable
    optimizers: tuple = tuple(OPTIMIZERS)
    has_moments: bool = False
    most_points: float | None = None
    most_nats: float | None = None


def _warmed_up(make, *arguments, **row):
    return Row(lambda steps: WarmStart(make(*arguments), steps=steps), **row)


EXCHANGES = {
    "full precision": Row(lambda steps: None),
    "1-bit": _warmed_up(OneBit, most_points=TOLERANCE_POINTS, most_nats=0.01),
    "1-bit, moments after": _warmed_up(lambda: OneBit(moments="after")),
    "threshold": _warmed_up(
        lambda: Threshold(target_density=1e-3), most_points=0.5, most_nats=0.02
    ),
    "threshold 1/100": _warmed_up(
        lambda: Threshold(target_density=1e-2), most_points=TOLERANCE_POINTS, most_nats=0.01
    ),
    "threshold, moments after": _warmed_up(lambda: Threshold(target_density=1e-3, moments="after")),
    "PowerSGD, rank 1": _warmed_up(PowerSGD, 1, optimizers=("sgd", "momentum")),
    "PowerSGD, rank 4": _warmed_up(PowerSGD, 4, optimizers=("sgd", "momentum")),
    "deep gradient compression": Row(
        DeepGradientCompression, optimizers=("momentum",), has_moments=True
    ),
    "1-bit Adam": _warmed_up(OneBitAdam, optimizers=("adam",), has_moments=True),
}


def train(task, data, optimizer, row, rate, seed, workers, steps, epochs):
    """Trains a model. Returns its held-out loss and accuracy, bytes per step, and seconds.

    If training diverges, the loss is infinite.
    """
    x, labels, held_out, held_out_labels = data
    keras.utils.set_random_seed(seed)
    total = steps * epochs
    exchange = row.exchange(max(1, round(WARM_PART * total)))
    strategy = tf_onebit.distribute.MirroredStrategy(
        exchange, [f"CPU:{worker}" for worker in range(workers)]
    )
    with strategy.scope():
        model = keras.Sequential(task.layers())
        schedule = keras.optimizers.schedules.CosineDecay(rate, total)
        model.compile(
            OPTIMIZERS["sgd" if row.has_moments else optimizer](schedule),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            steps_per_execution=min(STEPS_PER_CALL, steps),
        )
    start = time.perf_counter()
    size = task.batch_size
    chosen = np.random.default_rng(seed).permutation(len(x))[: steps * size]
    monitor = tf_onebit.callbacks.Monitor()
    try:
        history = model.fit(
            x[chosen], labels[chosen], size, epochs=epochs, verbose=0, callbacks=[monitor]
        ).history
        loss, accuracy = model.evaluate(held_out, held_out_labels, 8 * size, verbose=0)
        result = {
            "loss": loss,
            "accuracy": 100 * accuracy,
            "bytes": history["bytes_sent"][-1],
        }
    except tf.errors.InvalidArgumentError as error:
        if "must be finite" not in error.message:
            raise
        result = {"loss": math.inf, "accuracy": 0.0, "bytes": math.nan}
    keras.backend.clear_session()
    return result | {"seconds": time.perf_counter() - start}


def earlier_results(path, settings):
    """Returns the runs of an interrupted comparison: by optimizer, exchange, rate and seed."""
    if not path.exists():
        return {}
    earlier = json.loads(path.read_text())
    return earlier["results"] if earlier["settings"] == settings else {}


def best_rate(by_rate, seeds):
    """Returns the rate with the lowest mean loss, and its runs in the order of the seeds."""
    runs = {
        rate: [by_seed[str(seed)] for seed in seeds]
        for rate, by_seed in by_rate.items()
        if all(str(seed) in by_seed for seed in seeds)
    }
    return min(runs.items(), key=lambda item: np.mean([run["loss"] for run in item[1]]))


def report(results, seeds):
    """Prints a table for each optimizer. Returns the verdicts."""
    verdicts = []
    for optimizer, rows in results.items():
        _, full = best_rate(rows["full precision"], seeds)
        table, losses = [], {}
        for name, runs in rows.items():
            rate, best = best_rate(runs, seeds)
            is_edge = rate in (min(runs, key=float), max(runs, key=float))
            points = interval(
                [a["accuracy"] - b["accuracy"] for a, b in zip(full, best, strict=True)]
            )
            nats = interval([b["loss"] - a["loss"] for a, b in zip(full, best, strict=True)])
            losses[name] = points, nats
            table.append(
                [
                    name,
                    f"{rate}{' (edge)' if is_edge else ''}",
                    f"{best[0]['bytes']:,.0f}",
                    f"{np.mean([run['loss'] for run in best]):.4f}",
                    f"{np.mean([run['accuracy'] for run in best]):.2f}",
                    f"{points[0]:+.2f} +- {points[1]:.2f}",
                    f"{nats[0]:+.4f} +- {nats[1]:.4f}",
                ]
            )
        header = ["", "rate", "bytes", "loss", "accuracy", "points lost", "nats lost"]
        print_table(f"{optimizer}, held out, {CONFIDENCE:.0%}", header, table)
        print()
        for name, (points, nats) in losses.items():
            row, claim = EXCHANGES[name], f"{optimizer}, {name}"
            if row.most_points is not None:
                verdicts.append(verdict(f"{claim}: points lost", points[0], row.most_points))
                verdicts.append(verdict(f"{claim}: nats lost", nats[0], row.most_nats))
    return verdicts


def main(arguments):
    parser = argparse.ArgumentParser(
        "convergence.py optimizers", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--task", choices=TASKS, default="mlp")
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=["momentum", "adam"])
    parser.add_argument("--exchanges", nargs="+", choices=EXCHANGES, default=list(EXCHANGES))
    parser.add_argument("--rates", type=float, nargs="+", help="default: by the task")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--steps", type=int, help="of an epoch; default: by the task's data")
    parser.add_argument("--data", type=pathlib.Path, default=FASHION)
    parser.add_argument("--random", action="store_true", help="tries it out on random data")
    parser.add_argument("--output", type=pathlib.Path, default="results/optimizers.json")
    arguments = parser.parse_args(arguments)
    facts = machine_facts()
    print_machine_facts(facts)
    task = TASKS[arguments.task]
    data = task.load_random() if arguments.random else task.load(arguments.data)
    steps = min(arguments.steps or len(data[0]), len(data[0]) // task.batch_size)
    steps -= steps % min(steps, STEPS_PER_CALL)
    devices = [tf.config.LogicalDeviceConfiguration()] * arguments.workers
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
    training = {"workers": arguments.workers, "epochs": arguments.epochs, "steps": steps}
    settings = {"task": arguments.task, **training}
    results = earlier_results(arguments.output, settings)
    content = {"machine": facts, "settings": settings, "results": results}
    for optimizer in arguments.optimizers:
        for rate in arguments.rates or task.rates[optimizer]:
            for name in dict.fromkeys(["full precision", *arguments.exchanges]):
                if optimizer not in EXCHANGES[name].optimizers:
                    continue
                runs = results.setdefault(optimizer, {}).setdefault(name, {})
                runs = runs.setdefault(str(rate), {})
                for seed in arguments.seeds:
                    if str(seed) not in runs:
                        runs[str(seed)] = train(
                            task, data, optimizer, EXCHANGES[name], rate, seed, **training
                        )
                        print(f"{optimizer}, {name}, {rate}, {seed}: {runs[str(seed)]}")
                        write_json(arguments.output, content)
    write_json(arguments.output, content | {"verdicts": report(results, arguments.seeds)})
