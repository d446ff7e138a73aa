"""Compares steps of the papers' DNN in groups of processes with what `tf-onebit plan` predicts.

    sudo .venv/bin/python benchmarks/model_parallel.py --rate 10gbit 1gbit

Workers in network namespaces with shaped links, each pinned to a core, train the DNN
429 - 7x2048 - 9304 (45M parameters), as K groups of M members. The number of samples of all groups
together is the same for all rows. Groups exchange gradients by `OneBit`. In each round the workers
first plan together, and then each row takes its turn.

`--hidden 8x4096 --optimizer Adam` trains a DNN of 157M parameters, to show what a member holds.
`--parts 2` computes each batch as two half-batches, so that messages of one overlap with the other
(Seide et al. 2014b, section 3.1).
"""

import argparse
import os
from typing import NamedTuple

from launch import run_workers
from report import Spread, print_table, verdict
from rows import (
    STEP_WORKER,
    THREADS,
    add_rates,
    check,
    in_turns,
    milliseconds_text,
    pooled,
    reports_by_rate,
    write_reports,
)

WORKER = STEP_WORKER.with_name("model_parallel_worker.py")
PLAN_WORKER = STEP_WORKER.with_name("plan_worker.py")
METHOD = "1-bit"
MOST_OF_PREDICTION = 0.15
MOST_BEYOND_SHARE = 0.10
MOST_OF_TRAFFIC = 1.05  # beyond the activations: headers, and digests of batches


class Row(NamedTuple):
    """K groups of M members."""

    groups: int
    members: int

    @property
    def name(self):
        return f"{self.groups}x{self.members}"


def rows_of(workers):
    """Returns the rows for a number of workers, from those without groups: list."""
    return [Row(workers // m, m) for m in range(1, workers + 1) if workers % m == 0]


def predicted_seconds(rows, network, arguments):
    """Has the workers plan together. Returns the predicted time of a step by row: dictionary."""
    workers = network.num_hosts
    options = [
        *("--hidden", arguments.hidden, "--optimizer", arguments.optimizer),
        *("--per-replica-batch-size", str(arguments.samples // workers)),
        *("--workers", str(workers), "--members", *(str(r.members) for r in rows[1:])),
    ]
    plan = run_workers(network, PLAN_WORKER, options)[0]["plan"]
    by_members = {
        one["members"]: one["step_seconds"]
        for one in plan["predictions"]
        if one["method"] == METHOD or one["members"] == workers
    }
    predicted = {row: by_members[row.members] for row in rows}
    text = ", ".join(f"{row.name}: {1e3 * seconds:.1f} ms" for row, seconds in predicted.items())
    print(f"  predicted, {text}", flush=True)
    return predicted


def measured(row, network, arguments):
    options = [
        *("--members", str(row.members), "--samples", str(arguments.samples)),
        *("--parts", str(arguments.parts)),
        *("--hidden", arguments.hidden, "--optimizer", arguments.optimizer),
        *("--interface", network.interface, "--steps", str(arguments.steps)),
    ]
    results = run_workers(network, WORKER, options)
    check(row.name, results, ends_alike=False)
    return results


def summary_of(row, rounds, predictions):
    results = [result for workers in rounds for result in workers]
    return {
        "row": row.name,
        "step_seconds": Spread.of(pooled(results, "step_seconds")),
        "predicted_seconds": Spread.of([prediction[row] for prediction in predictions]),
        "interface_bytes": Spread.of([r["interface_bytes_per_step"] for r in results]),
        "peak_memory_bytes": Spread.of([r["peak_memory_bytes"] for r in results]),
        "held_bytes": results[0]["held_bytes"],
        "held_share": 1 / row.members,
        "traffic_bytes": 2 * (1 - 1 / row.members) * results[0]["activation_bytes"],
        "exchanges_gradients": row.groups > 1,
    }


def report(title, summaries):
    whole = sum(summaries[0]["held_bytes"].values())
    table, verdicts = [], []
    for summary in summaries:
        name, held = summary["row"], sum(summary["held_bytes"].values())
        ratio = summary["predicted_seconds"].median / summary["step_seconds"].median
        table.append(
            [
                name,
                milliseconds_text(summary["step_seconds"]),
                milliseconds_text(summary["predicted_seconds"]),
                f"{ratio:.2f}",
                f"{summary['interface_bytes'].median / 1e6:.3f}",
                f"{held / 1e6:.0f}",
                f"{held / whole:.3f}",
                f"{summary['peak_memory_bytes'].median / 1e6:.0f}",
            ]
        )
        claim = f"{title}, {name}: predicted over measured differs from 1 by"
        verdicts.append(verdict(claim, abs(ratio - 1), MOST_OF_PREDICTION))
        claim = f"{title}, {name}: part of the bytes that a worker without groups holds"
        verdicts.append(verdict(claim, held / whole, summary["held_share"] + MOST_BEYOND_SHARE))
        if not summary["exchanges_gradients"]:
            claim = f"{title}, {name}: bytes on the interface over (M - 1) / M of the activations"
            sent = summary["interface_bytes"].median / summary["traffic_bytes"]
            verdicts.append(verdict(claim, sent, MOST_OF_TRAFFIC))
    header = ["groups x members", "ms per step", "predicted", "predicted / measured"]
    header += ["MB on the interface", "MB held", "of all", "peak MB"]
    print_table(title, header, table)
    return verdicts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_rates(parser, "10gbit", "1gbit")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--samples", type=int, default=256, help="of all groups together")
    parser.add_argument("--parts", type=int, default=1, help="of a batch, to overlap messages")
    parser.add_argument("--hidden", default="7x2048", help="number and size of hidden layers")
    parser.add_argument("--optimizer", choices=["SGD", "Adam"], default="SGD")
    parser.add_argument("--steps", type=int, default=10, help="timed steps per round")
    parser.add_argument("--rounds", type=int, default=3, help="times that each row is measured")
    parser.add_argument("--output", default="results/model_parallel.json")
    arguments = parser.parse_args()
    os.environ.update(THREADS)
    cores = len(os.sched_getaffinity(0))
    if arguments.workers > cores:
        print(f"{arguments.workers} workers share {cores} cores.")
    rows = rows_of(arguments.workers)

    def measure(rate, network):
        predictions = []

        def turn(row):
            if row == rows[0]:
                predictions.append(predicted_seconds(rows, network, arguments))
            return measured(row, network, arguments)

        rounds = in_turns(rows, arguments.rounds, turn)
        summaries = [summary_of(row, rounds[row], predictions) for row in rows]
        title = f"{arguments.workers} workers, {arguments.samples} samples, links of {rate}"
        return summaries, report(title, summaries)

    reports = reports_by_rate(arguments.rate, arguments.workers, measure)
    write_reports(arguments, "rates", reports)


if __name__ == "__main__":
    main()
