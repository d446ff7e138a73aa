"""Time of a training step of the papers' DNN with and without gradient exchange.

    sudo .venv/bin/python benchmarks/step.py --rate 1gbit none

Workers in network namespaces with shaped links, each pinned to its own core, train the DNN
429 - 7x2048 - 9304 (45M parameters) with 64 samples per worker. The rows of the table differ only
in who exchanges the gradients. All have one intra-op thread and two inter-op threads: with a single
one TensorFlow's executor gets to answered collectives only after the backward pass. Every figure
comes from fresh workers, and the rows take turns, so that each row has its own peak memory and all
rows see the same drift of the machine.
"""

import argparse
import itertools
import math
import pathlib
from typing import NamedTuple

import numpy as np
from launch import run_workers
from network import hosts_on_a_bridge, rate_argument
from report import (
    Spread,
    machine_facts,
    plain,
    print_machine_facts,
    print_table,
    verdict,
    write_json,
)

WORKER = pathlib.Path(__file__).with_name("step_worker.py")
NO_COMMUNICATION = "no communication"
HOROVOD_FP32 = "Horovod fp32"
HOROVOD_ONE_BIT = "1-bit"
TENSORFLOW_STOCK = "TensorFlow's strategy"
TENSORFLOW_FULL_PRECISION = "full precision, our strategy"
TENSORFLOW_ONE_BIT = "1-bit, our strategy"

TARGET_DENSITY = 0.001
# What a step with threshold-sparse updates may take, in steps without communication.
THRESHOLD_LIMITS = {"1gbit": 1.2, "100mbit": 1.25}


class Row(NamedTuple):
    """One way to exchange the gradients, with the arguments that make a worker use it."""

    name: str
    exchange: str
    options: tuple = ()
    engine: str = "horovod"


def make_rows(arguments):
    methods, engines = arguments.method, arguments.engine
    threshold = "--target-density", str(TARGET_DENSITY)
    threshold += "--warm-up-steps", str(arguments.warm_up_steps)
    rows = [Row(NO_COMMUNICATION, "none"), Row(HOROVOD_FP32, "horovod_fp32")]
    if "horovod" in engines and "one_bit" in methods:
        rows += _horovod_rows(arguments.max_column_size, arguments.bucket_bytes)
    if "tensorflow" in engines and "one_bit" in methods:
        rows += [
            Row(TENSORFLOW_STOCK, "stock", engine="tensorflow"),
            Row(TENSORFLOW_FULL_PRECISION, "none", engine="tensorflow"),
            Row(TENSORFLOW_ONE_BIT, "one_bit", engine="tensorflow"),
        ]
    if "horovod" in engines and "threshold" in methods:
        coding = "--coding", "golomb_rice"
        rows += [
            Row("threshold", "threshold", threshold),
            Row("threshold, Golomb-Rice", "threshold", threshold + coding),
        ]
    if "tensorflow" in engines and "threshold" in methods:
        rows.append(Row("threshold, our strategy", "threshold", threshold, "tensorflow"))
    return rows


def _horovod_rows(max_column_sizes, bucket_sizes_bytes):
    rows = [Row("Horovod fp16", "horovod_fp16")]
    for max_column_size, bucket_bytes in itertools.product(max_column_sizes, bucket_sizes_bytes):
        name, options = HOROVOD_ONE_BIT, ()
        if max_column_size is not None:
            name += f", columns of {max_column_size}"
            options += ("--max-column-size", str(max_column_size))
        if bucket_bytes is not None:
            name += f", buckets of {bucket_bytes / 2**20:.0f} MiB"
            options += ("--bucket-bytes", str(bucket_bytes))
        rows.append(Row(name, "one_bit", options))
    # As it is recommended: the same after its steps in full precision are over.
    rows.append(Row("1-bit after a warm start", "one_bit", ("--warm-start", "1")))
    return rows


def measure(rows, rate, arguments):
    """Returns, for each row, its rounds, each a list of the workers' results."""
    rounds = {row.name: [] for row in rows}
    with hosts_on_a_bridge(arguments.workers, rate) as network:
        goodput = network.goodput_bits_per_second() if arguments.workers > 1 else math.nan
        print(f"\nrate {rate}: TCP goodput between two hosts {goodput / 1e6:.0f} Mbit/s")
        for number in range(arguments.rounds):
            for row in rows:
                results = run_workers(
                    network,
                    WORKER,
                    [
                        *("--engine", row.engine, "--exchange", row.exchange),
                        *("--interface", network.interface),
                        *("--steps", str(arguments.steps)),
                        *("--inter-op-threads", str(arguments.inter_op_threads)),
                        *row.options,
                    ],
                )
                check_training(row, results)
                rounds[row.name].append(results)
                milliseconds = 1e3 * Spread.of(pooled(results, "step_seconds")).median
                print(f"  round {number + 1}, {row.name}: {milliseconds:.1f} ms", flush=True)
    return goodput, rounds


def check_training(row, results):
    """A row counts only if it trained: finite losses, and the same weights on all workers."""
    if not np.all(np.isfinite(pooled(results, "losses"))):
        raise RuntimeError(f"{row.name}: the loss is not finite.")
    if row.name != NO_COMMUNICATION and len({r["weights_checksum"] for r in results}) > 1:
        raise RuntimeError(f"{row.name}: the workers' weights differ after the last step.")


def pooled(results, key):
    return [value for result in results for value in result[key]]


def sent_bytes(row, results, num_workers):
    """Bytes that a worker sends per step by the arithmetic of the exchange, by kind."""
    num_values = sum(math.prod(shape) for shape in results[0]["tensor_shapes"])
    ring = 2 * (num_workers - 1) / num_workers * num_values
    if row.name in (HOROVOD_FP32, TENSORFLOW_STOCK, TENSORFLOW_FULL_PRECISION):
        return {"full precision": 4 * ring}
    if row.exchange == "horovod_fp16":
        return {"half precision": 2 * ring}
    return results[0]["sent_bytes"]


def summarize(row, rounds, num_workers):
    results = [result for workers in rounds for result in workers]
    return {
        "row": row.name,
        "step_seconds": Spread.of(pooled(results, "step_seconds")),
        "round_medians_seconds": [
            float(np.median(pooled(workers, "step_seconds"))) for workers in rounds
        ],
        "sent_bytes": sent_bytes(row, results, num_workers),
        "interface_bytes": Spread.of([r["interface_bytes_per_step"] for r in results]),
        "peak_memory_bytes": Spread.of([r["peak_memory_bytes"] for r in results]),
        "tensor_shapes": results[0]["tensor_shapes"],
        "measures": results[0]["measures"],
    }


def paired_ratio(numerator, denominator):
    """Spread of the ratio of two rows' medians over the rounds."""
    pairs = zip(
        numerator["round_medians_seconds"], denominator["round_medians_seconds"], strict=True
    )
    return Spread.of([a / b for a, b in pairs])


def report(title, summaries):
    by_name = {summary["row"]: summary for summary in summaries}
    alone, horovod = by_name[NO_COMMUNICATION], by_name[HOROVOD_FP32]
    table = []
    for summary in summaries:
        seconds = summary["step_seconds"]
        memory = summary["peak_memory_bytes"].median - alone["peak_memory_bytes"].median
        table.append(
            [
                summary["row"],
                Spread(*(1e3 * value for value in seconds)).text(),
                paired_ratio(summary, alone).text(2),
                paired_ratio(horovod, summary).text(2),
                f"{sum(summary['sent_bytes'].values()) / 1e6:.3f}",
                f"{summary['interface_bytes'].median / 1e6:.3f}",
                f"{memory / 1e6:+.0f}",
            ]
        )
    header = ["", "ms per step", "x no communication", "speed-up over fp32"]
    header += ["MB sent", "MB on the interface", "peak MB"]
    print_table(title, header, table)
    print(
        "  Medians [quartiles]: of steps, and for ratios of rounds. MB sent per worker and step, by"
        "\n  the exchange's arithmetic and by the interface's counter (with TCP/IP headers). Peak"
        "\n  memory of a worker beyond no communication."
    )


def report_one_bit_bytes(summary, num_workers):
    """Prints what a 1-bit row sends by kind, and returns the verdict on its codes."""
    kinds = ", ".join(f"{kind} {count:,.0f}" for kind, count in summary["sent_bytes"].items())
    print(f"  {summary['row']} sends, in bytes per worker and step: {kinds}")
    num_values = sum(math.prod(shape) for shape in summary["tensor_shapes"] if len(shape) > 1)
    ideal = 2 * (num_workers - 1) / num_workers * num_values / 8
    return verdict(
        f"{summary['row']}: code bytes differ from 2 (K-1)/K M/8 = {ideal:,.0f} by a fraction of",
        abs(summary["sent_bytes"]["codes"] / ideal - 1),
        0.01,
    )


def judge(rate, summaries, num_workers):
    """Prints and returns the verdicts on what the rows must reach."""
    by_name = {summary["row"]: summary for summary in summaries}
    alone, horovod = by_name[NO_COMMUNICATION], by_name[HOROVOD_FP32]
    verdicts = []
    for row, baseline, most in (
        (TENSORFLOW_FULL_PRECISION, TENSORFLOW_STOCK, 1.05),
        (TENSORFLOW_ONE_BIT, HOROVOD_ONE_BIT, 1.15),
    ):
        if row in by_name and baseline in by_name:
            ratio = paired_ratio(by_name[row], by_name[baseline]).median
            verdicts.append(verdict(f"{row}: step time over that of {baseline}", ratio, most))
    for summary in summaries:
        name = summary["row"]
        if "updates" in summary["sent_bytes"]:
            density = summary["measures"]["density"]
            print(f"  {name}: density {density:.2e}")
            if rate in THRESHOLD_LIMITS and num_workers == 2:
                slowdown = paired_ratio(summary, alone).median
                claim = f"{name}: step time over no communication"
                verdicts.append(verdict(claim, slowdown, THRESHOLD_LIMITS[rate]))
        if "codes" not in summary["sent_bytes"]:
            continue
        if rate == "1gbit" and num_workers == 2:
            slowdown = paired_ratio(summary, alone).median
            speedup = paired_ratio(horovod, summary).median
            verdicts += [
                verdict(f"{name}: step time over no communication", slowdown, 1.35),
                verdict(f"{name}: times faster than Horovod fp32", speedup, 4.5, at_most=False),
            ]
        if rate == "none":
            relative = paired_ratio(summary, horovod).median
            verdicts.append(verdict(f"{name}: step time over Horovod fp32", relative, 0.75))
        if num_workers > 1:
            verdicts.append(report_one_bit_bytes(summary, num_workers))
    return verdicts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--rate", type=rate_argument, nargs="+", default=["1gbit", "none"], help="of each link"
    )
    parser.add_argument(
        "--engine",
        nargs="+",
        choices=["horovod", "tensorflow"],
        default=["horovod", "tensorflow"],
        help="who carries the messages of the rows beside the first two",
    )
    parser.add_argument(
        "--method", nargs="+", choices=["one_bit", "threshold"], default=["one_bit", "threshold"]
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20, help="timed steps per round")
    parser.add_argument("--rounds", type=int, default=3, help="times that each row is measured")
    parser.add_argument(
        "--warm-up-steps",
        type=int,
        default=150,
        help="with a threshold: until the density of the first steps has settled",
    )
    parser.add_argument("--inter-op-threads", type=int, default=2, help="the same for all rows")
    parser.add_argument("--max-column-size", type=int, nargs="+", default=[None])
    parser.add_argument("--bucket-bytes", type=int, nargs="+", default=[None])
    parser.add_argument("--output", default="results/step.json")
    arguments = parser.parse_args()

    facts = machine_facts()
    print_machine_facts(facts)
    if arguments.workers > facts["cores"]:
        print(f"{arguments.workers} workers share {facts['cores']} cores: times mean little.")
    rows = make_rows(arguments)
    reports = []
    for rate in arguments.rate:
        goodput, rounds = measure(rows, rate, arguments)
        summaries = [summarize(row, rounds[row.name], arguments.workers) for row in rows]
        report(f"{arguments.workers} workers, links of {rate}", summaries)
        verdicts = judge(rate, summaries, arguments.workers)
        reports.append(
            {
                "rate": rate,
                "goodput_bits_per_second": goodput,
                "rows": list(map(plain, summaries)),
                "verdicts": verdicts,
            }
        )
        # After every rate: a slow one that is given up does not take the others with it.
        content = {"machine": facts, "arguments": vars(arguments), "rates": reports}
        write_json(arguments.output, content)


if __name__ == "__main__":
    main()
