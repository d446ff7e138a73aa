"""Measures the time of a step of the papers' DNN with and without gradient exchange.

    sudo .venv/bin/python benchmarks/step.py --rate 1gbit none

Workers in network namespaces with shaped links, each pinned to its own core, train a DNN. It is
429 - 7x2048 - 9304 (45M parameters), with 64 samples per worker. The rows of the table differ only
in the exchange of gradients. All have one intra-op thread and two inter-op threads. With a single
inter-op thread, TensorFlow's executor gets to answered collectives only after the backward pass.
Every figure comes from fresh workers, so that each row has its own peak memory. The rows take
turns, so that all see the same drift of the machine.

What a row adds to a step is also given in triads, a = b + c, of the model's length. Each worker
measures triads after its steps, at the same time as the others. An exchange mostly moves memory, so
this figure hardly depends on how fast a core computes.
"""

import argparse
import itertools
import math
import os

from report import Spread, print_table, verdict
from rows import (
    NO_COMMUNICATION,
    Row,
    add_rates,
    add_turns,
    added_triads,
    in_turns,
    interface_and_memory_cells,
    milliseconds_text,
    paired_ratio,
    reports_by_rate,
    scatter,
    summarize,
    train,
    write_reports,
)

HOROVOD_FP32 = "Horovod fp32"
HOROVOD_ONE_BIT = "1-bit"
TENSORFLOW_STOCK = "TensorFlow's strategy"
TENSORFLOW_FULL_PRECISION = "full precision, our strategy"
TENSORFLOW_ONE_BIT = "1-bit, our strategy"

MOST_SCATTER = 0.1  # of steps without communication, between rounds
TARGET_DENSITY = 0.001
# The most that a step with threshold-sparse updates may take, in steps without communication.
THRESHOLD_LIMITS = {"1gbit": 1.2, "100mbit": 1.25}


def make_rows(arguments):
    """Returns the rows that the command line selects, and those that they are compared with."""
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
            Row(
                "1-bit, bfloat16 residuals, our strategy",
                "one_bit",
                ("--residual-dtype", "bfloat16"),
                "tensorflow",
            ),
        ]
    if "moments" in methods:
        rows += _moments_rows(engines, threshold)
    if "horovod" in engines and "threshold" in methods:
        coding = "--coding", "golomb_rice"
        rows += [
            Row("threshold", "threshold", threshold),
            Row("threshold, Golomb-Rice", "threshold", threshold + coding),
        ]
    if "tensorflow" in engines and "threshold" in methods:
        rows.append(Row("threshold, our strategy", "threshold", threshold, "tensorflow"))
    return _selected(rows, arguments.rows)


def _selected(rows, names):
    if names is None:
        return rows
    known = [row.name for row in rows]
    if unknown := set(names) - set(known):
        raise SystemExit(f"There are no rows {sorted(unknown)}. The rows are {known}.")
    needed = {row.alone for row in rows if row.name in names}
    return [row for row in rows if row.name in needed.union(names)]


def _moments_rows(engines, threshold):
    rows = []
    for optimizer in ("momentum", "Adam"):
        alone, options = f"{NO_COMMUNICATION}, {optimizer}", ("--optimizer", optimizer)
        rows.append(Row(alone, "none", options, ends_alike=False, alone=alone))
        exchanges = Row("1-bit", "one_bit"), Row("threshold", "threshold", threshold)
        for moments, row in itertools.product(("after", "local"), exchanges):
            # With local moments, 1-bit aggregates have two bits per value.
            of_moments = "--moments", moments, "--warm-start", "1"
            row = row._replace(
                name=f"{row.name}, {optimizer}, {moments}",
                options=(*row.options, *options, *of_moments),
                alone=alone,
            )
            rows += [
                row._replace(name=row.name + suffix, engine=engine)
                for engine, suffix in (("horovod", ""), ("tensorflow", ", our strategy"))
                if engine in engines
            ]
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
    narrow = "--residual-dtype", "bfloat16"
    rows.append(Row("1-bit, bfloat16 residuals", "one_bit", narrow))
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
        "alone": row.alone,
        "sent_bytes": sent_bytes(row, result, num_workers),
        "tensor_shapes": result["tensor_shapes"],
        "measures": result["measures"],
    }


def report(title, summaries):
    by_name = {summary["row"]: summary for summary in summaries}
    horovod = by_name.get(HOROVOD_FP32)
    table = []
    for summary in summaries:
        alone = by_name[summary["alone"]]
        table.append(
            [
                summary["row"],
                milliseconds_text(summary["step_seconds"]),
                paired_ratio(summary, alone).text(2),
                added_triads(summary, alone).text(2),
                paired_ratio(horovod, summary).text(2) if horovod else "",
                f"{sum(summary['sent_bytes'].values()) / 1e6:.3f}",
                *interface_and_memory_cells(summary, alone),
            ]
        )
    header = ["", "ms per step", "x no communication", "triads added", "speed-up over fp32"]
    header += ["MB sent", "MB on the interface", "peak MB"]
    print_table(title, header, table)
    print(
        "  Medians [quartiles]: of steps, and for ratios and triads of rounds. MB sent per worker"
        "\n  and step, by the exchange's arithmetic and by the interface's counter (with TCP/IP"
        "\n  headers). Peak memory of a worker beyond no communication."
    )
    report_cores(summaries)
    triads = [seconds for summary in summaries for seconds in summary["round_triads_seconds"]]
    print(f"  A triad takes {milliseconds_text(Spread.of(triads))} ms.")
    for summary in summaries:
        if summary["row"] == summary["alone"] and scatter(summary) > MOST_SCATTER:
            print(
                f"  The machine was not quiet: rounds of {summary['row']!r} scatter by "
                f"{scatter(summary):.0%}."
            )


def report_cores(summaries):
    """Prints what the core of a worker does in a step: its own work, the kernel's, and nothing."""
    table = []
    for summary in summaries:
        step, busy, system = (
            1e3 * summary[key].median
            for key in ("step_seconds", "processor_seconds", "system_seconds")
        )
        table.append(
            [summary["row"], *(f"{ms:.0f}" for ms in (busy - system, system, step - busy))]
        )
    print_table("a core, ms per step", ["", "in the process", "in the kernel", "idle"], table)


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
    horovod = by_name.get(HOROVOD_FP32)
    verdicts = []
    for row, baseline, most in (
        (TENSORFLOW_FULL_PRECISION, TENSORFLOW_STOCK, 1.05),
        (TENSORFLOW_ONE_BIT, HOROVOD_ONE_BIT, 1.15),
    ):
        if row in by_name and baseline in by_name:
            ratio = paired_ratio(by_name[row], by_name[baseline]).median
            verdicts.append(verdict(f"{row}: step time over that of {baseline}", ratio, most))
    for summary in summaries:
        name, alone = summary["row"], by_name[summary["alone"]]
        if "updates" in summary["sent_bytes"]:
            density = summary["measures"]["density"]
            print(f"  {name}: density {density:.2e}")
            if rate in THRESHOLD_LIMITS and num_workers == 2:
                slowdown = paired_ratio(summary, alone).median
                claim = f"{name}: step time over no communication"
                verdicts.append(verdict(claim, slowdown, THRESHOLD_LIMITS[rate]))
        if "codes" not in summary["sent_bytes"] or summary["alone"] != NO_COMMUNICATION:
            continue
        if rate == "1gbit" and num_workers == 2:
            slowdown = paired_ratio(summary, alone).median
            verdicts.append(verdict(f"{name}: step time over no communication", slowdown, 1.35))
        if rate == "1gbit" and num_workers == 2 and horovod:
            speedup = paired_ratio(horovod, summary).median
            claim = f"{name}: times faster than Horovod fp32"
            verdicts.append(verdict(claim, speedup, 4.5, at_most=False))
        if rate == "none" and horovod:
            relative = paired_ratio(summary, horovod).median
            verdicts.append(verdict(f"{name}: step time over Horovod fp32", relative, 0.75))
        if num_workers > 1:
            verdicts.append(report_one_bit_bytes(summary, num_workers))
    return verdicts


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_rates(parser, "1gbit", "none")
    add_turns(parser, rounds=5)
    methods = ["one_bit", "threshold", "moments"]
    parser.add_argument("--method", nargs="+", choices=methods, default=methods[:2])
    parser.add_argument("--rows", nargs="+", help="names; default: all of the methods and engines")
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
