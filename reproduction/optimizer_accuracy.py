"""Accuracy with optimizers that have moments, of each worker or of exchanged gradients.

A model learns on several workers, once for each row, learning rate and seed. The workers are
devices of one process, and run the code that jobs run. The first seed chooses the learning rate of
each row: neighbors differ by a factor of two, and both neighbors of the best one are worse. The
other seeds train with that rate. The tasks:

* "mlp" and "cnn": a network of two hidden layers, or one with convolutions and BatchNormalization,
  learns Fashion-MNIST. The data come with Debian's package dataset-fashion-mnist, 31 MB:
  `apt-get install dataset-fashion-mnist`.
* "transformer": a Transformer of 1.3 million weights learns the next character in the sources of
  Python's standard library.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import threading

import numpy as np
import optimizer_run
import pool
from accuracy_tasks import FASHION, TASKS
from intervals import CONFIDENCE, best_rate, interval
from optimizer_run import EXCHANGES, OPTIMIZERS, Run
from report import machine_facts, print_machine_facts, print_table, verdict, write_json

FULL_PRECISION = "full precision"
RATE_FACTOR = 2
SMALLEST_PART = 2**-10  # of the first rate of a search, for rows that diverge at any rate


class Comparison:
    """Runs of one task, and their results. It continues from the results of an interrupted one.

    Args:
        processes: pool of processes that train.
        base: a `Run` with the settings that all runs share.
        seeds: list of int.
        path: the file of results.
        machine: facts about the machine.
    """

    def __init__(self, processes, base, seeds, path, machine):
        self._processes, self._base, self._seeds, self._path = processes, base, seeds, path
        settings = ("task", "workers", "steps", "epochs")
        self._content = {
            "machine": machine,
            "settings": {name: getattr(base, name) for name in settings},
            "results": {},
        }
        if path.exists():
            earlier = json.loads(path.read_text())
            if earlier["settings"] == self._content["settings"]:
                self._content["results"] = earlier["results"]
        self._lock = threading.Lock()

    @property
    def results(self):
        """The runs: dictionary by optimizer, exchange, rate and seed."""
        return self._content["results"]

    def fill(self, optimizer, exchange, rates):
        """Trains a row: with given rates, or with those of a search."""
        first, *others = self._seeds
        if rates:
            self._train(optimizer, exchange, [(rate, first) for rate in rates])
        else:
            self._search(optimizer, exchange, TASKS[self._base.task].rates[optimizer])
        best, _ = best_rate(self.results[optimizer][exchange], [first])
        self._train(optimizer, exchange, [(float(best), seed) for seed in others])

    def _search(self, optimizer, exchange, rate):
        first, smallest = self._seeds[0], SMALLEST_PART * rate
        while rate > smallest:
            tried = (rate / RATE_FACTOR, rate, RATE_FACTOR * rate)
            self._train(optimizer, exchange, [(each, first) for each in tried])
            best, _ = best_rate(self.results[optimizer][exchange], [first])
            if float(best) == rate:
                return
            rate = float(best)

    def _train(self, optimizer, exchange, rates_and_seeds):
        with self._lock:
            runs = self.results.setdefault(optimizer, {}).setdefault(exchange, {})
        shared = {"optimizer": optimizer, "exchange": exchange}
        futures = {}
        for rate, seed in rates_and_seeds:
            if str(seed) not in runs.get(str(rate), {}):
                run = dataclasses.replace(self._base, rate=rate, seed=seed, **shared)
                futures[self._processes.submit(optimizer_run.train, run)] = rate, seed
        for future in concurrent.futures.as_completed(futures):
            (rate, seed), result = futures[future], future.result()
            print(f"{optimizer}, {exchange}, {rate}, {seed}: {result}", flush=True)
            with self._lock:
                runs.setdefault(str(rate), {})[str(seed)] = result
                write_json(self._path, self._content)

    def report(self):
        """Prints a table for each optimizer, and writes the verdicts."""
        verdicts = []
        for optimizer, rows in self.results.items():
            verdicts += report(optimizer, rows, self._seeds)
        write_json(self._path, self._content | {"verdicts": verdicts})


def report(optimizer, rows, seeds):
    """Prints the table of an optimizer. Returns the verdicts."""
    _, full = best_rate(rows[FULL_PRECISION], seeds)
    table, losses = [], {}
    for name, runs in rows.items():
        if (chosen := best_rate(runs, seeds)) is None:  # its comparison was interrupted
            continue
        rate, best = chosen
        is_edge = rate in (min(runs, key=float), max(runs, key=float))
        points = interval([a["accuracy"] - b["accuracy"] for a, b in zip(full, best, strict=True)])
        nats = interval([b["loss"] - a["loss"] for a, b in zip(full, best, strict=True)])
        losses[name] = points, nats
        table.append(
            [
                name,
                f"{rate}{' (edge)' if is_edge else ''}",
                f"{np.median([run['bytes'] for run in best]):,.0f}",
                f"{np.mean([run['loss'] for run in best]):.4f}",
                f"{np.mean([run['accuracy'] for run in best]):.2f}",
                f"{points[0]:+.2f} +- {points[1]:.2f}",
                f"{nats[0]:+.4f} +- {nats[1]:.4f}",
            ]
        )
    header = ["", "rate", "bytes", "loss", "accuracy", "points lost", "nats lost"]
    print_table(f"{optimizer}, held out, {CONFIDENCE:.0%}", header, table)
    print()
    verdicts = []
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
    parser.add_argument("--rates", type=float, nargs="+", help="default: a search")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--steps", type=int, help="of an epoch; default: by the task's data")
    parser.add_argument("--data", type=pathlib.Path, default=FASHION)
    parser.add_argument("--random", action="store_true", help="tries it out on random data")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--output", type=pathlib.Path, default="results/optimizers.json")
    options = parser.parse_args(arguments)
    facts = machine_facts()
    print_machine_facts(facts)
    folder = None if options.random else options.data
    size = len(optimizer_run.load(options.task, folder)[0])
    steps = min(options.steps or size, size // TASKS[options.task].batch_size)
    steps -= steps % min(steps, optimizer_run.STEPS_PER_CALL)
    base = Run(
        task=options.task,
        optimizer="",
        exchange="",
        rate=0.0,
        seed=0,
        workers=options.workers,
        steps=steps,
        epochs=options.epochs,
        data=folder,
    )
    rows = [
        (optimizer, name)
        for optimizer in options.optimizers
        for name in dict.fromkeys([FULL_PRECISION, *options.exchanges])
        if optimizer in EXCHANGES[name].optimizers
    ]
    with pool.processes(options.processes, options.workers) as processes:
        comparison = Comparison(processes, base, options.seeds, options.output, facts)
        # Two rows at a time, so that no process waits for the last run of a row.
        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            for done in [threads.submit(comparison.fill, *row, options.rates) for row in rows]:
                done.result()
    comparison.report()
