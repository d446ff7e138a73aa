"""Accuracy of training in blocks (BMUF-Adam) on the speech task, against Adam on one node.

One process simulates the workers of a run (`bmuf_simulation.py`), and each core has one process.
Learning rates are tuned first, coarsely, with the first seed. Blocks train with the rate of one
node. Before table 2, the rate of workers that exchange gradients is tuned, too. Results are written
as they come, and the same command continues from them.
"""

import argparse
import concurrent.futures
import dataclasses
import itertools
import json
import math
import os
import pathlib
import time

import bmuf_simulation
import chen_tables
import pool
from bmuf_run import Run
from report import machine_facts, print_machine_facts, write_json

TABLES = ("1", "2", "compressed", "fragments", "sparse")


def parse(arguments):
    parser = argparse.ArgumentParser("convergence.py bmuf", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--tables", nargs="+", choices=TABLES, default=TABLES, help="of Chen et al. 2020")
    add("--seeds", type=int, nargs="+", default=[1, 2, 3])
    add("--workers", type=int, nargs="+", default=[8, 16, 32, 64], help="of table 2")
    add("--sync-periods", type=int, nargs="+", default=[8, 16, 32], help="of table 2")
    add("--minibatches", type=int, default=327680, help="of all workers, after the common start")
    add("--long-seeds", type=int, default=1, help="for rows of table 2 that need more of them")
    add("--hours", type=float, default=4.0, help="speech in a pass")
    add("--targets", type=int, default=400, help="most phone states to tell apart")
    add("--depth", type=int, default=2, help="hidden layers")
    add("--width", type=int, default=128, help="units of a hidden layer")
    add("--frames", type=int, default=32, help="in a minibatch of one worker")
    add("--learning-rates", type=float, nargs="+", default=[0.00025, 0.0005, 0.001])
    add("--processes", type=int, default=len(os.sched_getaffinity(0)))
    add("--output", default="results/convergence_bmuf.json")
    options = parser.parse_args(arguments)
    for workers, period in itertools.product(options.workers, options.sync_periods):
        if options.minibatches % (workers * period):
            parser.error(
                "--minibatches must be whole blocks of all workers. Received: "
                f"{options.minibatches} for {workers} workers in blocks of {period} steps."
            )
    return options


class Runner:
    """A store of results that trains missing runs, and writes each result at once.

    Attributes:
        results: results of `train`, by run.
    """

    def __init__(self, processes, number, path):
        self._processes, self._number, self._path = processes, number, pathlib.Path(path)
        self.results = {}
        if self._path.exists():
            for result in json.loads(self._path.read_text())["results"]:
                self.results[Run(**result.pop("run"))] = result

    def new(self, runs):
        return [run for run in dict.fromkeys(runs) if run not in self.results]

    def hours(self, runs):
        """Returns about how long runs take, on cores with nothing else to do."""
        return sum(run.seconds for run in runs) / self._number / 3600

    def train(self, runs):
        new = self.new(runs)
        started, trained = time.monotonic(), []
        futures = {self._processes.submit(bmuf_simulation.train, run): run for run in new}
        for count, future in enumerate(concurrent.futures.as_completed(futures), start=1):
            run, result = futures[future], future.result()
            self.results[run] = result
            self._write()
            trained.append(run)
            speed = self.hours(trained) / (time.monotonic() - started)
            left = (self.hours(new) - self.hours(trained)) / speed / 3600
            print(
                f"  {count} of {len(new)}, {run.name}: {result['accuracy_percent']:.2f} %, "
                f"{result['seconds']:.0f} s; about {left:.1f} h left of these",
                flush=True,
            )

    @property
    def listed(self):
        return [{"run": dataclasses.asdict(run), **result} for run, result in self.results.items()]

    def _write(self):
        self._path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps({"results": self.listed}, indent=1) + "\n")
        os.replace(unfinished, self._path)

    def best(self, what, runs):
        """Trains a dictionary of runs. Returns the key of the run with the highest accuracy."""
        self.train(runs.values())
        accuracies = {value: self.results[run]["accuracy_percent"] for value, run in runs.items()}
        best = max(accuracies, key=accuracies.get)
        tried = ", ".join(f"{value:.3g}: {a:.2f} %" for value, a in accuracies.items())
        edge = " (at the edge)" if best in (min(runs), max(runs)) and len(runs) > 2 else ""
        print(
            f"{what}, tuned on the held-out data of one seed: {tried}; best {best:.3g}{edge}",
            flush=True,
        )
        return best


def base_runs(options):
    """Returns runs of one node, by learning rate."""
    sizes = [options.hours, options.targets, options.depth, options.width, options.frames]
    seed = options.seeds[0]
    return {rate: Run(*sizes, options.minibatches, rate, seed) for rate in options.learning_rates}


def factor_runs(options, base):
    """Returns runs of synchronous Adam, by number of workers and learning rate factor."""
    return {
        workers: {
            factor: chen_tables.synchronous(base, workers, factor)
            for factor in (1.0, math.sqrt(workers), float(workers))
        }
        for workers in options.workers
    }


def tables_of(name, options, base, factors):
    """Returns the tables of a name, with a second one for rows that need more minibatches."""
    if name == "1":
        return [chen_tables.moments_of(base, options.seeds)]
    if name == "compressed":
        return [
            chen_tables.compressed(base, options.seeds),
            chen_tables.quantized_moments(base, options.seeds[:1]),
        ]
    if name == "fragments":
        return [chen_tables.fragments(base, options.seeds)]
    if name == "sparse":
        return [chen_tables.sparse(base, options.seeds)]
    needs = {
        (workers, period): chen_tables.BLOCKS_PER_WORKER * workers**2 * period
        for workers in options.workers
        for period in options.sync_periods
    }
    few = [pair for pair, needed in needs.items() if needed <= base.minibatches]
    many = [pair for pair in needs if pair not in few]
    tables = [chen_tables.scaling(base, options.seeds, few, factors)] if few else []
    if many and options.long_seeds:
        longer = dataclasses.replace(base, minibatches=max(needs[pair] for pair in many))
        seeds = options.seeds[: options.long_seeds]
        tables.append(chen_tables.scaling(longer, seeds, many, factors))
    return tables


def print_plan(options, runner):
    """Prints about how long it takes with nothing else to do. Learning rates are not known yet."""
    bases = base_runs(options)
    base = bases[options.learning_rates[0]]
    parts = {"learning rate of one node": list(bases.values())}
    for name in options.tables:
        if name == "2":
            tried = [runs.values() for runs in factor_runs(options, base).values()]
            parts["learning rates of synchronous Adam"] = list(itertools.chain(*tried))
        factors = dict.fromkeys(options.workers, 1.0)
        for table in tables_of(name, options, base, factors):
            parts[table.title.splitlines()[0]] = table.runs
    planned = []
    for what, runs in parts.items():
        new = [run for run in runner.new(runs) if run not in planned]
        planned += new
        print(f"  {what}: {len(new)} trainings, {runner.hours(new):.1f} h")
    print(f"  in all {runner.hours(planned):.1f} h, where nothing else is running", flush=True)


def train_all(options, runner):
    """Trains and prints the tables, one after the other. Returns learning rate and verdicts."""
    bases = base_runs(options)
    base = bases[runner.best("learning rate of one node", bases)]
    verdicts = []
    for name in options.tables:
        factors = {}
        if name == "2":
            factors = {
                workers: runner.best(f"learning rate factor of {workers} synchronous workers", runs)
                for workers, runs in factor_runs(options, base).items()
            }
        for table in tables_of(name, options, base, factors):
            runner.train(table.runs)
            verdicts += table.report(runner.results)
    return base.learning_rate, verdicts


def main(arguments):
    options = parse(arguments)
    facts = machine_facts()
    print_machine_facts(facts)
    with pool.processes(options.processes) as processes:
        runner = Runner(processes, options.processes, options.output)
        print_plan(options, runner)
        any_run = next(iter(base_runs(options).values()))
        if not processes.submit(bmuf_simulation.check, any_run).result():
            raise SystemExit("A worker alone, in blocks, does not train as one node.")
        print("  a worker alone, in blocks, ends with the bits of one node: yes", flush=True)
        learning_rate, verdicts = train_all(options, runner)
    content = {"machine": facts, "arguments": vars(options), "learning_rate": learning_rate}
    write_json(options.output, content | {"verdicts": verdicts, "results": runner.listed})
