"""Measures steps of the papers' DNN in groups of processes, against a prediction.

    sudo .venv/bin/python benchmarks/model_parallel.py --rate 10gbit 1gbit

Workers in network namespaces with shaped links, each pinned to its own core, train the DNN
429 - 7x2048 - 9304 (45M parameters), as K groups of M members. The number of samples of all groups
together is the same for all rows. Groups exchange gradients by `OneBit`. Each row also runs with
nothing sent, which is the computation of the prediction.
"""

import argparse
import os
from typing import NamedTuple

import numpy as np
from launch import run_workers
from report import Spread, print_table, verdict
from rows import (
    STEP_WORKER,
    add_rates,
    check,
    in_turns,
    milliseconds_text,
    pooled,
    reports_by_rate,
    write_reports,
)
from step_worker import HIDDEN_LAYERS, NUM_CLASSES

from tf_onebit.planner import ModelParallelism

WORKER = STEP_WORKER.with_name("model_parallel_worker.py")
# Part of the computation that a backward pass takes, in which messages can hide.
BACKWARD = 2 / 3
MOST_OF_PREDICTION = 0.15


class Row(NamedTuple):
    """K groups of M members, with or without messages."""

    groups: int
    members: int
    sends: bool

    @property
    def name(self):
        return f"{self.groups}x{self.members}{'' if self.sends else ', nothing sent'}"


def rows_of(workers):
    """Returns the rows for a number of workers: list."""
    sizes = [members for members in range(1, workers + 1) if workers % members == 0]
    return [Row(workers // m, m, sends) for m in sizes for sends in (False, True)]


def predicted_seconds(row, computed_seconds, exchange_bytes, samples, bytes_per_second):
    """Predicts the time of a step.

    Members wait for activations, forward and backward. Gradients travel during the backward pass.

    Args:
        row: `Row`.
        computed_seconds: time of the same step with nothing sent.
        exchange_bytes: bytes that a worker sends for gradients.
        samples: number of samples of all groups.
        bytes_per_second: goodput of a link.
    """
    if row.members == 1:
        waiting = 0.0
    else:
        paper = ModelParallelism(
            parameters=1,  # the computation is measured
            operations_per_second=1,
            bytes_per_second=bytes_per_second,
            minibatch_size=samples / row.groups,
            activations=sum(HIDDEN_LAYERS) + NUM_CLASSES,
        )
        waiting = 2 * paper.communication_seconds(row.members)
    exchanging = exchange_bytes / bytes_per_second if row.groups > 1 else 0.0
    return computed_seconds + waiting + max(0.0, exchanging - BACKWARD * computed_seconds)


def measured(row, network, arguments):
    options = [
        *("--members", str(row.members), "--samples", str(arguments.samples)),
        *("--interface", network.interface, "--steps", str(arguments.steps)),
        *(() if row.sends else ("--send-nothing",)),
    ]
    results = run_workers(network, WORKER, options)
    if row.sends:
        check(row.name, results, ends_alike=False)
    return results


def summaries_of(rows, rounds, arguments, bytes_per_second):
    summaries = []
    for row in rows:
        if not row.sends:
            continue
        results = [result for workers in rounds[row] for result in workers]
        silent = [r for workers in rounds[row._replace(sends=False)] for r in workers]
        seconds = Spread.of(pooled(results, "step_seconds"))
        predicted = predicted_seconds(
            row,
            float(np.median(pooled(silent, "step_seconds"))),
            results[0]["exchange_bytes"],
            arguments.samples,
            bytes_per_second,
        )
        summaries.append(
            {
                "row": row.name,
                "step_seconds": seconds,
                "predicted_seconds": predicted,
                "interface_bytes": Spread.of([r["interface_bytes_per_step"] for r in results]),
                "peak_memory_bytes": Spread.of([r["peak_memory_bytes"] for r in results]),
                "held_values": results[0]["held_values"],
            }
        )
    return summaries


def report(title, summaries):
    table = [
        [
            summary["row"],
            milliseconds_text(summary["step_seconds"]),
            f"{1e3 * summary['predicted_seconds']:.1f}",
            f"{summary['interface_bytes'].median / 1e6:.3f}",
            f"{summary['held_values'] / 1e6:.2f}",
            f"{summary['peak_memory_bytes'].median / 1e6:.0f}",
        ]
        for summary in summaries
    ]
    header = ["groups x members", "ms per step", "predicted", "MB on the interface"]
    print_table(title, [*header, "M weights", "peak MB"], table)
    return [
        verdict(
            f"{summary['row']}: differs from its prediction by a fraction of",
            abs(summary["step_seconds"].median / summary["predicted_seconds"] - 1),
            MOST_OF_PREDICTION,
        )
        for summary in summaries
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_rates(parser, "10gbit", "1gbit")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--samples", type=int, default=256, help="of all groups together")
    parser.add_argument("--steps", type=int, default=10, help="timed steps per round")
    parser.add_argument("--rounds", type=int, default=3, help="times that each row is measured")
    parser.add_argument("--output", default="results/model_parallel.json")
    arguments = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    if arguments.workers > cores:
        print(f"{arguments.workers} workers share {cores} cores: times mean little.")
    rows = rows_of(arguments.workers)

    def measure(rate, network):
        rounds = in_turns(rows, arguments.rounds, lambda row: measured(row, network, arguments))
        bytes_per_second = network.goodput_bits_per_second() / 8
        summaries = summaries_of(rows, rounds, arguments, bytes_per_second)
        title = f"{arguments.workers} workers, {arguments.samples} samples, links of {rate}"
        return summaries, report(title, summaries)

    reports = reports_by_rate(arguments.rate, arguments.workers, measure)
    write_reports(arguments, "rates", reports)


if __name__ == "__main__":
    main()
