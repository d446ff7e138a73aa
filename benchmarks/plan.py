"""Compares the predictions of `tf-onebit plan` for the papers' DNN with measured steps.

    sudo .venv/bin/python benchmarks/plan.py

It also measures the time of a plan for the default numbers of workers: theirs, twice and four times
as many. Then it measures the simulation of a step of 1,000 workers that are all different.

Workers in network namespaces with shaped links, each pinned to a core (four share two cores), first
plan together. Then they train the DNN 429 - 7x2048 - 9304 (45M parameters), over Horovod or in a
strategy, with 64 samples each. They do so in full precision, with 1-bit and with threshold-sparse
gradients, and with SGD in blocks. Each worker has one intra-op thread and two inter-op threads.
"""

import argparse
import os
import pathlib
import time
from typing import NamedTuple

import numpy as np
from launch import run_workers
from network import hosts_on_a_bridge, rate_argument
from report import Spread, machine_facts, print_machine_facts, print_table, verdict, write_json
from rows import THREADS

from tf_onebit.planner import Bucket, Collective, Computation, Link, Worker, simulate

DIRECTORY = pathlib.Path(__file__).parent
SYNC_PERIOD = 16
# By then the density is near the target, for which the prediction is made.
THRESHOLD_WARM_UP_STEPS = 400
MOST_DIFFERENCE = 0.15
MOST_SECONDS = 60
SIMULATED_WORKERS, MOST_SIMULATION_SECONDS = 1000, 10


class Row(NamedTuple):
    """A method as `tf-onebit plan` calls it, and the command that measures it."""

    method: str
    script: str
    options: tuple


def rows(steps, engine, optimizer):
    step = ("--engine", engine, "--inter-op-threads", "2", "--steps", str(steps))
    step += ("--optimizer", optimizer)
    blocks = ("--optimizer", "SGD", "--exchange", "1-bit", "--sync-period", str(SYNC_PERIOD))
    density = ("--target-density", "0.001", "--warm-up-steps", str(THRESHOLD_WARM_UP_STEPS))
    gradients = [
        Row("full precision", "step_worker.py", (*step, "--exchange", "full_precision")),
        Row("1-bit", "step_worker.py", (*step, "--exchange", "one_bit")),
        Row("threshold", "step_worker.py", (*step, "--exchange", "threshold", *density)),
    ]
    # Blocks differ little between engines. Those of other optimizers have moments of their own.
    if engine != "horovod" or optimizer != "SGD":
        return gradients
    blocks += ("--blocks", "1", "--turns", "2")
    return [*gradients, Row(f"blocks of {SYNC_PERIOD}, 1-bit", "block_worker.py", blocks)]


def step_seconds(row, network):
    """Returns the median time of a step of the slowest worker."""
    options = row.options
    if row.script == "step_worker.py":
        options += ("--interface", network.interface)
    results = run_workers(network, DIRECTORY / row.script, options)
    if row.script == "step_worker.py":
        return float(np.median(np.max([r["step_seconds"] for r in results], axis=0)))
    turns = np.max([r["together_seconds"] for r in results], axis=0)
    return float(np.median(turns)) / SYNC_PERIOD


def measure(workers, rate, arguments):
    with hosts_on_a_bridge(workers, rate) as network:
        planned = run_workers(
            network,
            DIRECTORY / "plan_worker.py",
            [
                *("--engine", arguments.engine, "--optimizer", arguments.optimizer),
                *("--sync-period", str(SYNC_PERIOD)),
            ],
        )[0]
        predictions = {
            prediction["method"]: prediction
            for prediction in planned["plan"]["predictions"]
            if prediction["workers"] == workers
        }
        measured = []
        for row in rows(arguments.steps, arguments.engine, arguments.optimizer):
            if arguments.method and row.method not in arguments.method:
                continue
            seconds = step_seconds(row, network)
            predicted = predictions[row.method]["step_seconds"]
            measured.append({"method": row.method, "seconds": seconds, "predicted": predicted})
            print(
                f"  {row.method}: {1e3 * seconds:.0f} ms, predicted {1e3 * predicted:.0f} ms",
                flush=True,
            )
    return planned, measured


def simulation_seconds():
    """Returns the time to simulate steps of many workers, with stragglers and ten buckets."""
    links = {kind: Link(0.001, 118e6, 0.8e-9) for kind in ("all_to_all", "all_gather")}
    worker = Worker(Computation(0.06, 0.16, 0.02), links)
    collectives = tuple(Collective(0.003, kind, 0.3e6) for kind in links)
    slowdowns = np.random.default_rng(1).lognormal(0, 0.1, [5, SIMULATED_WORKERS])
    start = time.perf_counter()
    simulate(
        [(worker, SIMULATED_WORKERS)],
        10 * [Bucket(4.5e6, collectives, 0.004)],
        steps=len(slowdowns),
        slowdowns=slowdowns,
    )
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--rate", type=rate_argument, nargs="+", default=["100mbit", "1gbit", "none"]
    )
    parser.add_argument("--engine", choices=["horovod", "tensorflow"], default="horovod")
    parser.add_argument("--optimizer", choices=["SGD", "momentum", "Adam"], default="SGD")
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--method", nargs="+", help="only these")
    parser.add_argument("--steps", type=int, default=5, help="that are timed, per method")
    parser.add_argument("--output", default="results/plan.json")
    arguments = parser.parse_args()
    os.environ.update(THREADS)
    facts = machine_facts()
    print_machine_facts(facts)
    claim = f"seconds to simulate 5 steps of {SIMULATED_WORKERS:,} workers"
    verdicts = [verdict(claim, simulation_seconds(), MOST_SIMULATION_SECONDS)]
    table, reports = [], []
    for workers in arguments.workers:
        for rate in arguments.rate:
            print(f"\n{workers} workers, links of {rate}", flush=True)
            planned, measured = measure(workers, rate, arguments)
            name = f"{workers} workers, {rate}"
            for one in measured:
                ratio = one["predicted"] / one["seconds"]
                cells = [f"{1e3 * one[key]:.0f}" for key in ("seconds", "predicted")]
                table.append([f"{name}, {one['method']}", *cells, f"{ratio:.2f}"])
                claim = f"{name}, {one['method']}: predicted over measured differs from 1 by"
                verdicts.append(verdict(claim, abs(ratio - 1), MOST_DIFFERENCE))
            claim = f"{name}: seconds that a plan takes"
            verdicts.append(verdict(claim, planned["seconds"], MOST_SECONDS))
            reports.append(
                {"workers": workers, "rate": rate, "rows": measured, "plan": planned["plan"]}
            )
            content = {"machine": facts, "arguments": vars(arguments), "verdicts": verdicts}
            write_json(arguments.output, content | {"jobs": reports})
    header = ["", "ms per step", "predicted", "predicted / measured"]
    print_table("Steps of the papers' DNN", header, table)
    differences = [abs(one["predicted"] / one["seconds"] - 1) for r in reports for one in r["rows"]]
    print(f"  Differences: {Spread.of(differences).text(3)}, at most {max(differences):.3f}")


if __name__ == "__main__":
    main()
