"""Accuracy, compression and size of messages of threshold-sparse updates, on the speech task.

One process simulates the workers of a run (`simulate.py`), and each core has one process. First it
finds the tau that sends one value in 1000. It sets the scale of the taus that are compared.
"""

import argparse
import concurrent.futures
import dataclasses
import os

import pool
import simulate
import strom_tables
from report import machine_facts, print_machine_facts, write_json

TABLES = (2, 3, 4)


def parse(arguments):
    parser = argparse.ArgumentParser(
        "convergence.py threshold", description=__doc__.splitlines()[0]
    )
    add = parser.add_argument
    add("--tables", type=int, nargs="+", choices=TABLES, default=TABLES, help="of Strom 2015")
    add("--seeds", type=int, nargs="+", default=[1, 2, 3])
    add("--hours", type=float, default=1.0, help="speech to train on")
    add("--depth", type=int, default=3, help="hidden layers")
    add("--width", type=int, default=256, help="units of a hidden layer")
    add("--batch-size", type=int, default=64, help="frames per step of all workers together")
    add("--learning-rate", type=float, default=0.2, help="the highest, after warm-up")
    add("--processes", type=int, default=len(os.sched_getaffinity(0)))
    add("--output", default="results/convergence_threshold.json")
    return parser.parse_args(arguments)


class Runner:
    """A store of results that trains missing runs with each of the seeds.

    Attributes:
        results: results of `simulate.train`, by run.
    """

    def __init__(self, processes, seeds):
        self._processes = processes
        self._seeds = seeds
        self.results = {}

    def train(self, runs):
        wanted = [
            dataclasses.replace(run, seed=seed)
            for seed in self._seeds
            for either in runs
            for run in (either.full_precision, either)
        ]
        new = [run for run in dict.fromkeys(wanted) if run not in self.results]
        futures = {self._processes.submit(simulate.train, run): run for run in new}
        for done, future in enumerate(concurrent.futures.as_completed(futures), start=1):
            run, result = futures[future], future.result()
            self.results[run] = result
            print(
                f"  {done} of {len(new)}, {run.name}: {result['accuracy_percent']:.2f} %, "
                f"{result['updates']:,.0f} updates per message, {result['seconds']:.0f} s",
                flush=True,
            )


def main(arguments):
    options = parse(arguments)
    facts = machine_facts()
    print_machine_facts(facts)
    base = simulate.Run(
        options.hours,
        options.depth,
        options.width,
        options.batch_size,
        options.learning_rate,
        seed=options.seeds[0],
    )
    with pool.processes(options.processes) as processes:
        runner = Runner(processes, options.seeds)
        outcomes = strom_tables.Outcomes(options.seeds, runner.results)
        pilot = strom_tables.pilot(base)
        runner.train([pilot])
        tau = outcomes.mean(pilot, "tau")
        print(f"  tau that sends one value in {1 / pilot.target_density:g}: {tau:.4g}", flush=True)
        tables = {
            2: strom_tables.scaling(base),
            3: strom_tables.thresholds(base, tau),
            4: strom_tables.model_sizes(base, tau),
        }
        tables = [tables[number] for number in options.tables]
        runner.train([run for table in tables for run in table.rows.values()])
    verdicts = [verdict for table in tables for verdict in table.report(outcomes)]
    results = [{"run": dataclasses.asdict(run), **result} for run, result in runner.results.items()]
    content = {"machine": facts, "arguments": vars(options), "tau": tau}
    write_json(options.output, content | {"results": results, "verdicts": verdicts})
