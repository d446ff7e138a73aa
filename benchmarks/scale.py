"""Measures what nodes send to each other, with several workers on each.

    sudo .venv/bin/python benchmarks/scale.py

Network namespaces are nodes. Each has one shaped link to the others, and several Horovod workers.
They train a network of the papers' kind, once for each form of a job, exchange and way to group
workers. There are more workers than cores. So bytes, collectives and processor time count, and
times of a step only as ratios.

Horovod's processes ask each other for work a thousand times per second, also while there is none.
Steps of crowded workers are long. So that these questions count little, workers ask less often. The
table also shows the bytes of a node's messages alone. Without groups some of them stay in the node.
"""

import argparse
import os
import pathlib
from typing import NamedTuple

from launch import run_workers
from network import hosts_on_a_bridge, rate_argument
from report import Spread, plain, print_table, verdict
from rows import THREADS, check, pooled, write_reports

WORKER = pathlib.Path(__file__).with_name("scale_worker.py")
# Milliseconds between two questions.
SETTINGS = THREADS | {"HOROVOD_CYCLE_TIME": "25"}
EXCHANGES = ("full", "one_bit", "threshold")
DEFAULT = ("full", "one_bit")  # the density of threshold takes many steps to be reached
MOST_BYTES = 1.05  # of a node, compared with a node of one worker
BITS = 8


class Job(NamedTuple):
    """A form of a job: so many nodes with so many workers each."""

    nodes: int
    per_node: int

    @property
    def name(self):
        return f"{self.nodes}x{self.per_node}"

    @classmethod
    def of(cls, text):
        return cls(*map(int, text.split("x")))


class Row(NamedTuple):
    """A way to exchange. `groups` is "node" or "none"."""

    exchange: str
    groups: str

    @property
    def name(self):
        return f"{self.exchange}{', by node' if self.groups == 'node' else ''}"


def rows_of(job, exchanges):
    groups = ["none"] if job.per_node == 1 else ["none", "node"]
    return [Row(exchange, of) for exchange in exchanges for of in groups]


def measured(job, row, network, arguments):
    options = [
        *("--exchange", row.exchange, "--groups", row.groups, "--hidden", arguments.hidden),
        *("--optimizer", arguments.optimizer, "--interface", network.interface),
        *("--max-column-size", str(arguments.max_column_size)),
        *("--warm-up", str(arguments.warm_up), "--steps", str(arguments.steps)),
    ]
    results = run_workers(network, WORKER, options, per_host=job.per_node)
    check(f"{job.name}, {row.name}", results)
    first_of_nodes = results[:: job.per_node]
    summary = {
        "job": job.name,
        "row": row.name,
        "uplink_bytes": Spread.of([r["uplink_bytes_per_step"] for r in first_of_nodes]),
        "worker_bytes": Spread.of([r["bytes_sent"] for r in results]),
        "cpu_seconds": Spread.of([r["cpu_seconds_per_step"] for r in results]),
        "step_seconds": Spread.of(pooled(results, "step_seconds")),
        "collectives": sum(results[0]["collectives"].values()),
        "model_values": results[0]["model_values"],
    }
    print(f"  {job.name}, {row.name}: {summary['uplink_bytes'].median / 1e6:.3f} MB", flush=True)
    return summary


def report(summaries):
    """Prints the table. Returns the verdicts."""
    by_name = {(s["job"], s["row"]): s for s in summaries}
    table, verdicts = [], []
    for summary in summaries:
        job, full = Job.of(summary["job"]), by_name.get((summary["job"], "full"))
        time_ratio = summary["step_seconds"].median / full["step_seconds"].median if full else None
        # A ring sends this many values.
        sent_values = 2 * (job.nodes - 1) / job.nodes * summary["model_values"]
        table.append(
            [
                summary["job"],
                summary["row"],
                f"{summary['uplink_bytes'].median / 1e6:.3f}",
                f"{BITS * summary['uplink_bytes'].median / sent_values:.2f}",
                f"{job.per_node * summary['worker_bytes'].median / 1e6:.3f}",
                f"{summary['collectives']}",
                f"{1e3 * summary['cpu_seconds'].median:.0f}",
                f"{time_ratio:.2f}" if time_ratio else "",
            ]
        )
        alone = by_name.get((Job(job.nodes, 1).name, summary["row"].removesuffix(", by node")))
        if alone and summary["row"].endswith("by node"):
            ratio = summary["uplink_bytes"].median / alone["uplink_bytes"].median
            claim = f"{summary['job']}, {summary['row']}: bytes of a node over those of one worker"
            verdicts.append(verdict(claim, ratio, MOST_BYTES))
    header = ["nodes x workers", "exchange", "MB of a node", "bits per value", "MB of messages"]
    header += ["collectives", "ms of processor", "time / full"]
    print_table("A step, by the form of the job", header, table)
    return verdicts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=rate_argument, default="1gbit", help="of a node's link")
    parser.add_argument(
        "--jobs",
        type=Job.of,
        nargs="+",
        default=[Job(2, 1), Job(2, 2), Job(2, 4), Job(4, 1), Job(4, 2), Job(4, 4), Job(8, 2)],
        help="nodes x workers on each, such as 4x2",
    )
    parser.add_argument("--exchanges", nargs="+", choices=EXCHANGES, default=DEFAULT)
    parser.add_argument("--hidden", default="2x2048", help="number and size of hidden layers")
    parser.add_argument("--optimizer", choices=["SGD", "Adam"], default="SGD")
    parser.add_argument("--max-column-size", type=int, default=512, help="of one_bit")
    parser.add_argument("--warm-up", type=int, default=2, help="steps before those that count")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--output", default="results/scale.json")
    arguments = parser.parse_args()
    os.environ.update(SETTINGS)
    write_reports(arguments, "tables", reports(arguments))


def reports(arguments):
    """Yields the report of all jobs, after it has run them."""
    summaries = []
    for job in arguments.jobs:
        with hosts_on_a_bridge(job.nodes, arguments.rate) as network:
            rows = rows_of(job, arguments.exchanges)
            summaries += [measured(job, row, network, arguments) for row in rows]
    verdicts = report(summaries)
    yield {"rows": list(map(plain, summaries)), "verdicts": verdicts}


if __name__ == "__main__":
    main()
