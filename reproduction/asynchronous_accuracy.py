"""Accuracy after the same samples: asynchronous workers, one of them slow, or synchronous ones.

Both send by `Threshold`. The slow worker has a smaller part of the data, so that it ends with the
others. With `--equal-shares` its part is as large as theirs. Then it continues alone, long after
the others' learning rate has reached its end. All replicas are equal when they are evaluated.
"""

import argparse
import pathlib

import numpy as np
from intervals import CONFIDENCE, interval
from report import machine_facts, print_machine_facts, print_table, verdict, write_json
from speech_jobs import (
    ACCURACY_HEADER,
    SLOWDOWN,
    Row,
    accuracies,
    accuracy_cells,
    train_in_turns,
)

SYNCHRONOUS = Row("synchronous", ("--warm-start", "0"))
PACED_WORKER = pathlib.Path(__file__).with_name("paced_speech_worker.py")
TOLERANCE_POINTS = 0.5


def _asynchronous(workers, equal_shares):
    name = f"asynchronous, the last worker {SLOWDOWN} times as slow"
    if equal_shares:
        return Row(f"{name}, with as much data", ("--asynchronous",), PACED_WORKER)
    shares = [str(share) for share in [*(workers - 1) * [SLOWDOWN], 1]]
    return Row(name, ("--asynchronous", "--shares", *shares), PACED_WORKER)


def report(results, seeds):
    """Prints the table. Returns the mean loss of accuracy and its half interval."""
    table = []
    for name, runs in results.items():
        compression = np.mean([run["compression_ratio"] for run in runs])
        delay = np.mean([np.mean(run["delay_steps"] or 0.0) for run in runs])
        table.append([name, *accuracy_cells(runs), f"{compression:,.0f}", f"{delay:.2f}"])
    header = ["", *ACCURACY_HEADER, "compression, in bytes", "delay [steps]"]
    print_table(f"held out, after the same samples; seeds {seeds}, {CONFIDENCE:.0%}", header, table)
    synchronous, asynchronous = map(accuracies, results.values())
    return interval(synchronous - asynchronous)


def main(arguments):
    parser = argparse.ArgumentParser(
        "convergence.py asynchronous", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--hours", type=float, default=2.0, help="speech to train on")
    parser.add_argument("--batch-size", type=int, default=128, help="frames per step and worker")
    parser.add_argument("--equal-shares", action="store_true", help="for the slow worker, too")
    parser.add_argument("--output", default="results/convergence_asynchronous.json")
    arguments, training = parser.parse_known_args(arguments)
    facts = machine_facts()
    print_machine_facts(facts)
    training = [
        *("--exchange", "threshold", "--hours", str(arguments.hours)),
        *("--batch-size", str(arguments.batch_size), *training),
    ]
    asynchronous = _asynchronous(arguments.workers, arguments.equal_shares)
    rows = [SYNCHRONOUS, asynchronous]
    results = train_in_turns(rows, arguments.seeds, arguments.workers, training)
    lost, half = report(results, arguments.seeds)
    print()
    claim = f"{asynchronous.name}: points of accuracy lost"
    verdicts = [
        verdict(claim, lost, TOLERANCE_POINTS),
        verdict(f"{claim}, upper end of the interval", lost + half, TOLERANCE_POINTS),
    ]
    content = {"machine": facts, "arguments": vars(arguments), "training": training}
    write_json(arguments.output, content | {"results": results, "verdicts": verdicts})
