"""Accuracy after the same samples: asynchronous workers, one of them slow, or synchronous ones.

Both send by `Threshold`, and have the same part of the data each. The slow worker ends long after
the others; then all replicas are the same, and are evaluated.
"""

import argparse
import pathlib

import numpy as np
from intervals import CONFIDENCE, interval
from report import machine_facts, print_machine_facts, print_table, verdict, write_json
from speech_jobs import ACCURACY_HEADER, Row, accuracies, accuracy_cells, train_in_turns

SYNCHRONOUS = Row("synchronous", ("--warm-start", "0"))
ASYNCHRONOUS = Row(
    "asynchronous, the last worker 4 times as slow",
    ("--asynchronous",),
    pathlib.Path(__file__).with_name("slow_speech_worker.py"),
)
TOLERANCE_POINTS = 0.5


def report(results, seeds):
    """Prints the table; returns mean loss of accuracy and its half interval."""
    table = []
    for name, runs in results.items():
        table.append(
            [
                name,
                *accuracy_cells(runs),
                f"{np.mean([run['compression_ratio'] for run in runs]):,.0f}",
            ]
        )
    header = ["", *ACCURACY_HEADER, "compression, in bytes"]
    print_table(f"held out, after the same samples; seeds {seeds}, {CONFIDENCE:.0%}", header, table)
    synchronous, asynchronous = map(accuracies, results.values())
    return interval(synchronous - asynchronous)


def main(arguments):
    parser = argparse.ArgumentParser(
        "convergence.py asynchronous", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--hours", type=float, default=1.0, help="speech to train on")
    parser.add_argument("--batch-size", type=int, default=32, help="frames per step and worker")
    parser.add_argument("--output", default="results/convergence_asynchronous.json")
    arguments, training = parser.parse_known_args(arguments)
    facts = machine_facts()
    print_machine_facts(facts)
    training = [
        *("--exchange", "threshold", "--hours", str(arguments.hours)),
        *("--batch-size", str(arguments.batch_size), *training),
    ]
    rows = [SYNCHRONOUS, ASYNCHRONOUS]
    results = train_in_turns(rows, arguments.seeds, arguments.workers, training)
    lost, half = report(results, arguments.seeds)
    print()
    claim = f"{ASYNCHRONOUS.name}: points of accuracy lost"
    verdicts = [
        verdict(claim, lost, TOLERANCE_POINTS),
        verdict(f"{claim}, upper end of the interval", lost + half, TOLERANCE_POINTS),
    ]
    content = {"machine": facts, "arguments": vars(arguments), "training": training}
    write_json(arguments.output, content | {"results": results, "verdicts": verdicts})
