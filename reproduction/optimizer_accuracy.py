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
import json
import pathlib
import time

import keras
import numpy as np
import tensorflow as tf
from accuracy_tasks import FASHION, TASKS
from intervals import CONFIDENCE, TOLERANCE_POINTS, interval
from report import machine_facts, print_machine_facts, print_table, verdict, write_json

import tf_onebit
from tf_onebit import OneBit, Threshold, WarmStart

TOLERANCE_NATS = 0.01
WARM_PART = 0.1  # of the steps exchange in full precision
STEPS_PER_CALL = 26

OPTIMIZERS = {
    "sgd": lambda rate: keras.optimizers.SGD(rate),
    "momentum": lambda rate: keras.optimizers.SGD(rate, momentum=0.9),
    "adam": lambda rate: keras.optimizers.Adam(rate),
    "adamw": lambda rate: keras.optimizers.AdamW(rate),
}
EXCHANGES = {
    "full precision": None,
    "1-bit": lambda: OneBit(),
    "1-bit, moments after": lambda: OneBit(moments="after"),
    "threshold": lambda: Threshold(target_density=1e-3),
    "threshold 1/100": lambda: Threshold(target_density=1e-2),
    "threshold, moments after": lambda: Threshold(target_density=1e-3, moments="after"),
}


def train(task, data, optimizer, exchange, rate, seed, workers, steps, epochs):
    """Trains a model. Returns its held-out loss and accuracy, and the seconds it took."""
    x, labels, held_out, held_out_labels = data
    keras.utils.set_random_seed(seed)
    total = steps * epochs
    warm = exchange and WarmStart(exchange(), steps=max(1, round(WARM_PART * total)))
    strategy = tf_onebit.distribute.MirroredStrategy(
        warm, [f"CPU:{worker}" for worker in range(workers)]
    )
    with strategy.scope():
        model = keras.Sequential(task.layers())
        schedule = keras.optimizers.schedules.CosineDecay(rate, total)
        model.compile(
            OPTIMIZERS[optimizer](schedule),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            steps_per_execution=min(STEPS_PER_CALL, steps),
        )
    start = time.perf_counter()
    size = task.batch_size
    chosen = np.random.default_rng(seed).permutation(len(x))[: steps * size]
    model.fit(x[chosen], labels[chosen], batch_size=size, epochs=epochs, verbose=0)
    loss, accuracy = model.evaluate(held_out, held_out_labels, batch_size=8 * size, verbose=0)
    keras.backend.clear_session()
    return {"loss": loss, "accuracy": 100 * accuracy, "seconds": time.perf_counter() - start}


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
                    f"{np.mean([run['loss'] for run in best]):.4f}",
                    f"{np.mean([run['accuracy'] for run in best]):.2f}",
                    f"{points[0]:+.2f} +- {points[1]:.2f}",
                    f"{nats[0]:+.4f} +- {nats[1]:.4f}",
                ]
            )
        header = ["", "rate", "loss", "accuracy", "points lost", "nats lost"]
        print_table(f"{optimizer}, held out, {CONFIDENCE:.0%}", header, table)
        print()
        for name, (points, nats) in losses.items():
            if name != "full precision":
                claim = f"{optimizer}, {name}"
                verdicts.append(verdict(f"{claim}: points lost", points[0], TOLERANCE_POINTS))
                verdicts.append(verdict(f"{claim}: nats lost", nats[0], TOLERANCE_NATS))
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
