"""Trains the rows of a table of step times by turns, and prints and writes their figures.

`step.py`, `double_buffering.py` and `block.py` use it. Workers run in network namespaces with
shaped links and train the papers' DNN.
"""

import math
import pathlib
from typing import NamedTuple

import numpy as np
from launch import run_workers
from network import hosts_on_a_bridge, rate_argument
from report import Spread, machine_facts, plain, print_machine_facts, write_json

NO_COMMUNICATION = "no communication"
# Environment of workers that share cores.
THREADS = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2"}
STEP_WORKER = pathlib.Path(__file__).with_name("step_worker.py")


class Row(NamedTuple):
    """A way to exchange gradients, with the arguments that make `step_worker.py` use it.

    Attributes:
        name: str.
        exchange: str, an argument of the worker.
        options: tuple of further arguments.
        engine: "horovod" or "tensorflow".
        ends_alike: whether all workers must end with the same weights.
        alone: name of the row that takes the same steps without communication.
    """

    name: str
    exchange: str
    options: tuple = ()
    engine: str = "horovod"
    ends_alike: bool = True
    alone: str = NO_COMMUNICATION


def add_rates(parser, *default):
    """Adds the option of the links that a table is made for."""
    parser.add_argument("--rate", type=rate_argument, nargs="+", default=default, help="of links")


def add_turns(parser, rounds):
    """Adds the options of rows of `step_worker.py` that take turns."""
    engines = ["horovod", "tensorflow"]
    parser.add_argument(
        "--engine", nargs="+", choices=engines, default=engines, help="who carries messages"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20, help="timed steps per round")
    parser.add_argument(
        "--rounds", type=int, default=rounds, help="times that each row is measured"
    )


def train(row, network, steps, inter_op_threads=2):
    """Trains a row on fresh workers. Returns the list of their results.

    Raises:
        RuntimeError: if the row does not count, see `check`.
    """
    options = [
        *("--engine", row.engine, "--exchange", row.exchange, "--interface", network.interface),
        *("--steps", str(steps), "--inter-op-threads", str(inter_op_threads), *row.options),
    ]
    results = run_workers(network, STEP_WORKER, options)
    check(row.name, results, row.ends_alike)
    return results


def check(name, results, ends_alike=True):
    """Raises RuntimeError unless a row trained: finite losses, the same weights on all workers."""
    if not np.all(np.isfinite(pooled(results, "losses"))):
        raise RuntimeError(f"{name}: the loss is not finite.")
    if ends_alike and len({result["weights_checksum"] for result in results}) > 1:
        raise RuntimeError(f"{name}: the workers' weights differ after the last step.")


def pooled(results, key):
    return [value for result in results for value in result[key]]


def in_turns(rows, rounds, train_row, note=""):
    """Trains the rows in turns, so that all see the same drift of the machine.

    Args:
        rows: list of `Row`.
        rounds: int.
        train_row: function of a row, returns the workers' results.
        note: str, printed before the name of a row.

    Returns:
        Dictionary: list of rounds by row, each the list of the workers' results.
    """
    results = {row: [] for row in rows}
    for number in range(rounds):
        for row in rows:
            workers = train_row(row)
            results[row].append(workers)
            milliseconds = 1e3 * np.median(pooled(workers, "step_seconds"))
            print(f"  round {number + 1}, {note}{row.name}: {milliseconds:.1f} ms", flush=True)
    return results


def summarize(row, rounds):
    """Returns the figures that all rows of `step_worker.py` have, for the rounds of one row."""
    results = [result for workers in rounds for result in workers]
    return {
        "row": row.name,
        "step_seconds": Spread.of(pooled(results, "step_seconds")),
        "round_medians_seconds": _medians(rounds, "step_seconds"),
        "round_triads_seconds": _medians(rounds, "triad_seconds"),
        "processor_seconds": Spread.of([r["processor_seconds_per_step"] for r in results]),
        "system_seconds": Spread.of([r["system_seconds_per_step"] for r in results]),
        "interface_bytes": Spread.of([r["interface_bytes_per_step"] for r in results]),
        "peak_memory_bytes": Spread.of([r["peak_memory_bytes"] for r in results]),
    }


def _medians(rounds, key):
    return [float(np.median(pooled(workers, key))) for workers in rounds]


def added_triads(summary, alone):
    """Returns the spread of what a row adds to a step, in triads of the model's length.

    A triad is the addition of two arrays, a = b + c. Unlike the ratio of two steps, what is added
    in triads does not depend on how fast a core computes.

    Args:
        summary: summary of the row.
        alone: summary of the row that takes the same steps without communication.
    """
    both = zip(
        summary["round_medians_seconds"],
        alone["round_medians_seconds"],
        summary["round_triads_seconds"],
        strict=True,
    )
    return Spread.of([(step - step_alone) / triad for step, step_alone, triad in both])


def scatter(summary):
    """Returns the range of a row's medians over the rounds, in relation to their median."""
    seconds = summary["round_medians_seconds"]
    return (max(seconds) - min(seconds)) / np.median(seconds)


def paired_ratio(numerator, denominator):
    """Returns the spread of the ratio of two rows' medians over the rounds."""
    pairs = zip(
        numerator["round_medians_seconds"], denominator["round_medians_seconds"], strict=True
    )
    return Spread.of([a / b for a, b in pairs])


def milliseconds_text(seconds, decimals=1):
    """Returns the text of a `Spread` of seconds."""
    return Spread(*(1e3 * value for value in seconds)).text(decimals)


def interface_and_memory_cells(summary, alone):
    """Returns cells: megabytes on the interface, and memory beyond the row `alone`."""
    memory = summary["peak_memory_bytes"].median - alone["peak_memory_bytes"].median
    return [f"{summary['interface_bytes'].median / 1e6:.3f}", f"{memory / 1e6:+.0f}"]


def reports_by_rate(rates, workers, measure, delay_seconds=0.0):
    """Measures on links of one rate after the other.

    Args:
        rates: list of str.
        workers: int, one per host.
        measure: function of a rate and a `Network`, returns summaries and verdicts.
        delay_seconds: time that a packet takes from one host to another.

    Yields:
        A dictionary per rate, for `write_reports`.
    """
    for rate in rates:
        with hosts_on_a_bridge(workers, rate, delay_seconds) as network:
            goodput = network.goodput_bits_per_second() if workers > 1 else math.nan
            print(f"\nrate {rate}: TCP goodput between two hosts {goodput / 1e6:.0f} Mbit/s")
            summaries, verdicts = measure(rate, network)
        yield {
            "rate": rate,
            "goodput_bits_per_second": goodput,
            "rows": list(map(plain, summaries)),
            "verdicts": verdicts,
        }


def write_reports(arguments, key, reports):
    """Prints the facts of the machine, and writes the reports to `arguments.output`.

    Args:
        arguments: parsed command line.
        key: str, name of the reports in the file.
        reports: iterator of dictionaries, which measures as it advances.
    """
    facts = machine_facts()
    print_machine_facts(facts)
    written = []
    for report in reports:
        written.append(report)
        # It is written after each report, because an interrupt of a slow one must not lose the
        # others.
        content = {"machine": facts, "arguments": vars(arguments), key: written}
        write_json(arguments.output, content)
