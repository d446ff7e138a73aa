"""Measures the time of a step of the papers' DNN with and without gradient exchange.

    sudo .venv/bin/python benchmarks/step.py --rate 1gbit none

Workers in network namespaces with shaped links, each pinned to its own core, train a DNN. It is
429 - 7x2048 - 9304 (45M parameters), with 64 samples per worker. The rows of the table differ only
in the exchange of gradients. All have one intra-op thread and two inter-op threads. With a single
inter-op thread, TensorFlow's executor gets to answered collectives only after the backward pass.
Every figure comes from fresh workers, so that each row has its own peak memory. The rows take
turns, so that all see the same drift of the machine.
"""

import argparse
import itertools
import math
import os

from report import print_table, verdict
from rows import (
    Row,
    add_rates,
    add_turns,
    in_turns,
    interface_and_memory_cells,
    milliseconds_text,
    paired_ratio,
    reports_by_rate,
    summarize,
    train,
    write_reports,
)

NO_COMMUNICATION = "no communication"
HOROVOD_FP32 = "Horovod fp32"
HOROVOD_ONE_BIT = "1-bit"
TENSORFLOW_STOCK = "TensorFlow's strategy"
TENSORFLOW_FULL_PRECISION = "full precision, our strategy"
TENSORFLOW_ONE_BIT = "1-bit, our strategy"

# Rows with momentum, and where it is. With local moments, aggregates have two bits per value.
WITH_MOMENTUM = {"1-bit, momentum after": "after", "1-bit, local momentum": "local"}

TARGET_DENSITY = 0.001
# The most that a step with threshold-sparse updates may take, in steps without communication.
THRESHOLD_LIMITS = {"1gbit": 1.2, "100mbit": 1.25}


def make_rows(arguments):
    methods, engines = arguments.method, arguments.engine
    threshold = "--target-density", str(TARGET_DENSITY)
    threshold += "--warm-up-steps", str(arguments.warm_up_steps)
    rows = [Row(NO_COMMUNICATION, "none", ends_alike=False), Row(HOROVOD_FP32, "horovod_fp32")]
    if "horovod" in engines and "one_bit" in methods:
        rows += _horovod_rows(arguments.max_column_size, arguments.bucket_bytes)
    if "tensorflow" in engines and "one_bit" in methods:
        rows += [
            Row(TENSORFLOW_STOCK, "stock", engine="tensorflow"),
            Row(TENSORFLOW_FULL_PRECISION, "none", engine="tensorflow"),
            Row(TENSORFLOW_ONE_BIT, "one_bit", engine="tensorflow"),
        ]
    if "horovod" in engines and "moments" in methods:
        momentum = "--momentum", "0.9"
        rows.append(Row("no communication, momentum", "none", momentum, ends_alike=False))
        for name, moments in WITH_MOMENTUM.items():
            options = *momentum, "--moments", moments, "--warm-start", "1"
            rows.append(Row(name, "one_bit", options))
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
    # The recommended setting, after its steps in full precision.
    rows.append(Row("1-bit after a warm start", "one_bit", ("--warm-start", "1")))
    return rows


def sent_bytes(row, result, num_workers):
    """Returns the bytes that a worker sends per step by kind, by the exchange's arithmetic."""
    num_values = sum(math.prod(shape) for shape in result["tensor_shapes"])
    ring = 2 * (num_workers - 1) / num_workers * num_values
    if row.name in (HOROVOD_FP32, TENSORFLOW_STOCK, TENSORFLOW_FULL_PRECISION):
        return {"full precision": 4 * ring}
    if row.exchange == "horovod_fp16":
        return {"half precision": 2 * ring}
    return result["sent_bytes"]


def summary_of(row, rounds, num_workers):
    result = rounds[0][0]  # of the first worker: all send alike
    return {
        **summarize(row, rounds),
        "sent_bytes": sent_bytes(row, result, num_workers),
        "tensor_shapes": result["tensor_shapes"],
        "measures": result["measures"],
    }


def report(title, summaries):
    by_name = {summary["row"]: summary for summary in summaries}
    alone, horovod = by_name[NO_COMMUNICATION], by_name[HOROVOD_FP32]
    table = []
    for summary in summaries:
        table.append(
            [
                summary["row"],
                milliseconds_text(summary["step_seconds"]),
                paired_ratio(summary, alone).text(2),
                paired_ratio(horovod, summary).text(2),
                f"{sum(summary['sent_bytes'].values()) / 1e6:.3f}",
                *interface_and_memory_cells(summary, alone),
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
    """Prints the bytes that a 1-bit row sends by kind, and returns the verdict on its codes."""
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
    """Prints and returns the verdicts on the rows."""
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
        if "codes" not in summary["sent_bytes"] or name in WITH_MOMENTUM:
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


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_rates(parser, "1gbit", "none")
    add_turns(parser, rounds=3)
    methods = ["one_bit", "threshold", "moments"]
    parser.add_argument("--method", nargs="+", choices=methods, default=methods[:2])
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
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    rows, workers = make_rows(arguments), arguments.workers
    cores = len(os.sched_getaffinity(0))
    if workers > cores:
        print(f"{workers} workers share {cores} cores: times mean little.")

    def train_row(row, network):
        return train(row, network, arguments.steps, arguments.inter_op_threads)

    def measure(rate, network):
        rounds = in_turns(rows, arguments.rounds, lambda row: train_row(row, network))
        summaries = [summary_of(row, rounds[row], workers) for row in rows]
        report(f"{workers} workers, links of {rate}", summaries)
        return summaries, judge(rate, summaries, workers)

    write_reports(arguments, "rates", reports_by_rate(arguments.rate, workers, measure))


if __name__ == "__main__":
    main()
