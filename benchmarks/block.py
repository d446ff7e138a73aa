"""Measures the time of training in blocks (BMUF), against steps without communication.

    sudo .venv/bin/python benchmarks/block.py --rate 1gbit 100mbit
    sudo .venv/bin/python benchmarks/block.py --rate 10mbit --delay-ms 100 --steps 128

Workers in network namespaces with shaped links, each pinned to its own core, train the DNN
429 - 7x2048 - 9304 (45M parameters). Each has 64 samples per step. `model.fit` runs with and
without `BlockMomentum`, by turns in one job.
"""

import argparse
import pathlib
from typing import NamedTuple

import numpy as np
from launch import run_workers
from report import Spread, print_table, verdict
from rows import add_rates, check, milliseconds_text, reports_by_rate, write_reports

WORKER = pathlib.Path(__file__).with_name("block_worker.py")


class Row(NamedTuple):
    """One way to train in blocks, and its limits by rate, relative to no communication."""

    optimizer: str
    exchange: str
    sync_period: int
    limits: dict
    fragments: int = 1
    overlap: int = 0

    @property
    def name(self):
        name = f"{self.optimizer}, {self.exchange}, every {self.sync_period}"
        if self.fragments > 1:
            name += f", {self.fragments} fragments"
        return f"{name}, overlap {self.overlap}" if self.overlap else name


ROWS = (
    Row("SGD", "full precision", 64, {"1gbit": 1.12}),
    Row("SGD", "1-bit", 16, {"1gbit": 1.06, "100mbit": 1.20}),
    Row("Adam", "1-bit", 16, {"1gbit": 1.15}),
    Row("Adam", "full precision", 16, {}),
    Row("Adam", "1-bit", 32, {"100mbit": None, "10mbit": None}),
    Row("Adam", "1-bit", 32, {"100mbit": 1.02}, fragments=4, overlap=8),
    Row("Adam", "1-bit", 32, {"10mbit": 1.05}, fragments=4, overlap=16),
    Row("Adam", "top-k 1/16", 32, {"100mbit": None, "10mbit": None}, fragments=4, overlap=8),
)
SLOW = ("100mbit", "10mbit")  # other rows would only take long there
MOST_OF_AN_ALL_REDUCE = 1.1


def measure(row, network, arguments):
    results = run_workers(
        network,
        WORKER,
        [
            *("--optimizer", row.optimizer, "--exchange", row.exchange),
            *("--sync-period", str(row.sync_period)),
            *("--blocks", str(max(1, arguments.steps // row.sync_period))),
            *("--turns", str(arguments.turns), "--interface", network.interface),
            *("--fragments", str(row.fragments), "--overlap", str(row.overlap)),
        ],
    )
    check(row.name, results)
    # By turn: the slowest worker's time in blocks, relative to the workers' time on their own.
    alone, together = (
        np.array([result[f"{kind}_seconds"] for result in results])
        for kind in ("alone", "together")
    )
    ratios = together.max(axis=0) / alone.mean(axis=0)
    steps = row.sync_period * max(1, arguments.steps // row.sync_period)
    summary = {
        "row": row.name,
        "step_seconds": Spread.of(alone.ravel() / steps),
        "ratios": Spread.of(ratios),
        "synchronization_seconds": Spread.of(
            np.array([result["synchronization_seconds"] for result in results]).max(axis=0)
        ),
    }
    summary["peak_bits_per_second"] = max(result["peak_bits_per_second"] for result in results)
    if "all_reduce_seconds" in results[0]:
        summary["all_reduce_seconds"] = Spread.of(
            np.array([result["all_reduce_seconds"] for result in results]).max(axis=0)
        )
    print(f"  {row.name}: {summary['ratios'].text(3)} x no communication", flush=True)
    return summary


def report(title, summaries):
    table = []
    for summary in summaries:
        milliseconds = {
            key: milliseconds_text(summary[key], 0)
            for key in ("step_seconds", "synchronization_seconds", "all_reduce_seconds")
            if key in summary
        }
        table.append(
            [
                summary["row"],
                milliseconds["step_seconds"],
                milliseconds["synchronization_seconds"],
                milliseconds.get("all_reduce_seconds", ""),
                f"{summary['peak_bits_per_second'] / 1e6:.1f}",
                summary["ratios"].text(3),
            ]
        )
    header = ["", "ms per step alone", "ms per synchronization", "ms per all-reduce of its bytes"]
    header += ["highest Mbit/s", "x no communication"]
    print_table(title, header, table)
    print("  Medians [quartiles]. Times of synchronizations begin when all workers are there. With")
    print("  overlap they are the times for which training stops. Rates are over 100 ms. Steps do")
    print("  not include the synchronization of all fragments at the end of an epoch.")


def judge(rate, summaries, rows):
    verdicts = []
    for row, summary in zip(rows, summaries, strict=True):
        if row.limits.get(rate) is not None:
            claim = f"{row.name}: time over no communication"
            verdicts.append(verdict(claim, summary["ratios"].median, row.limits[rate]))
        if rate == "1gbit" and "all_reduce_seconds" in summary:
            ratio = summary["synchronization_seconds"].median / summary["all_reduce_seconds"].median
            claim = f"{row.name}: synchronization over an all-reduce of the same bytes"
            verdicts.append(verdict(claim, ratio, MOST_OF_AN_ALL_REDUCE))
    return verdicts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_rates(parser, "1gbit", "100mbit")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="of a packet between two hosts")
    parser.add_argument("--steps", type=int, default=64, help="of each turn, in whole blocks")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[*range(len(ROWS))], help="by number"
    )
    parser.add_argument("--output", default="results/block.json")
    arguments = parser.parse_args()

    def measure_rate(rate, network):
        rows = [ROWS[i] for i in arguments.rows if rate in ROWS[i].limits or rate not in SLOW]
        summaries = [measure(row, network, arguments) for row in rows]
        delay = f", {arguments.delay_ms:g} ms away" if arguments.delay_ms else ""
        report(f"2 workers, links of {rate}{delay}", summaries)
        return summaries, judge(rate, summaries, rows)

    write_reports(
        arguments,
        "rates",
        reports_by_rate(arguments.rate, 2, measure_rate, arguments.delay_ms / 1e3),
    )


if __name__ == "__main__":
    main()
