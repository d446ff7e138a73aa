"""Time of a training step of the papers' DNN with and without double buffering.

    sudo .venv/bin/python benchmarks/double_buffering.py

Workers as in `step.py`: in network namespaces with shaped links, each pinned to its own core, with
the DNN 429 - 7x2048 - 9304 (45M parameters), 64 samples each and 1-bit gradients, over Horovod and
in a strategy. The rows of each engine:

- computation alone: gradients are encoded and decoded as ever, and sent to nobody;
- delayed, on links of 1 Gbit/s;
- communication alone, delayed, and not delayed, on links so slow that communication alone takes as
  long as computation. Their rate, unless it is given, follows from the time of the first row, the
  bytes on the interface, and how much longer communication takes than that many bytes would.

Every figure comes from fresh workers, and the rows take turns. A worker has one core: by as much as
that is busier than in computation alone, a step is longer, however well it overlaps.
"""

import argparse
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
from step import WORKER, paired_ratio, pooled

FAST_RATE = "1gbit"
# What a delayed step may take, in those of computation alone.
FAST_LIMIT, SLOW_LIMIT = 1.08, 1.15


class Row(NamedTuple):
    """A way to exchange the gradients, with the arguments that make a worker use it."""

    name: str
    options: tuple
    is_slow: bool = False


COMPUTATION = Row("computation alone", ("--send-nothing",))
DELAYED = Row("delayed, fast links", ("--delay", "1"))
COMMUNICATION = Row("communication alone, slow links", ("--compute-nothing",), is_slow=True)
SLOW_DELAYED = Row("delayed, slow links", ("--delay", "1"), is_slow=True)
SLOW = Row("not delayed, slow links", (), is_slow=True)
ROWS = COMPUTATION, DELAYED, COMMUNICATION, SLOW_DELAYED, SLOW


def run(row, engine, rate, arguments):
    """Runs fresh workers once. Returns the list of their results."""
    with hosts_on_a_bridge(arguments.workers, rate) as network:
        results = run_workers(
            network,
            WORKER,
            [
                *("--engine", engine, "--exchange", "one_bit", "--interface", network.interface),
                *("--steps", str(arguments.steps), "--inter-op-threads", "2"),
                *row.options,
            ],
        )
    if not np.all(np.isfinite(pooled(results, "losses"))):
        raise RuntimeError(f"{row.name}: the loss is not finite.")
    if (
        row not in (COMPUTATION, COMMUNICATION)
        and len({r["weights_checksum"] for r in results}) > 1
    ):
        raise RuntimeError(f"{row.name}: the workers' weights differ after the last step.")
    return results


def slow_rate(engine, arguments):
    """Of links on which a step's messages alone take as long as its computation alone."""

    def seconds_and_bits(row, rate):
        results = run(row, engine, rate, arguments)
        sent_bytes = np.median([result["interface_bytes_per_step"] for result in results])
        return np.median(pooled(results, "step_seconds")), 8 * sent_bytes

    computation, _ = seconds_and_bits(COMPUTATION, FAST_RATE)
    _, bits = seconds_and_bits(COMMUNICATION, FAST_RATE)
    rate = bits / computation
    communication, _ = seconds_and_bits(COMMUNICATION, _in_megabits(rate))
    beside_sending = communication - bits / rate
    return _in_megabits(bits / (computation - beside_sending))


def _in_megabits(rate):
    return f"{rate / 1e6:.0f}mbit"


def measure(engine, arguments):
    """Returns the rate of slow links, and for each row its rounds: lists of workers' results."""
    rate, rounds = arguments.slow_rate or slow_rate(engine, arguments), {row: [] for row in ROWS}
    print(f"  {engine}: slow links have {rate}", flush=True)
    for number in range(arguments.rounds):
        for row in ROWS:
            results = run(row, engine, rate if row.is_slow else FAST_RATE, arguments)
            rounds[row].append(results)
            milliseconds = 1e3 * np.median(pooled(results, "step_seconds"))
            print(f"  round {number + 1}, {engine}, {row.name}: {milliseconds:.1f} ms", flush=True)
    return rate, rounds


def summarize(row, rounds):
    results = [result for workers in rounds for result in workers]
    return {
        "row": row.name,
        "step_seconds": Spread.of(pooled(results, "step_seconds")),
        "round_medians_seconds": [
            float(np.median(pooled(workers, "step_seconds"))) for workers in rounds
        ],
        "processor_seconds": Spread.of([r["processor_seconds_per_step"] for r in results]),
        "interface_bytes": Spread.of([r["interface_bytes_per_step"] for r in results]),
        "peak_memory_bytes": Spread.of([r["peak_memory_bytes"] for r in results]),
    }


def report(engine, rate, summaries):
    """Prints the table of an engine, and returns its verdicts."""
    alone = summaries[COMPUTATION]
    table = []
    for summary in summaries.values():
        ratios = paired_ratio(summary, alone)
        memory = summary["peak_memory_bytes"].median - alone["peak_memory_bytes"].median
        table.append(
            [
                summary["row"],
                Spread(*(1e3 * value for value in summary["step_seconds"])).text(),
                ratios.text(2),
                f"{1e3 * summary['processor_seconds'].median:.0f}",
                f"{summary['interface_bytes'].median / 1e6:.3f}",
                f"{memory / 1e6:+.0f}",
            ]
        )
    header = ["", "ms per step", "x computation alone", "busy ms", "MB on the interface", "peak MB"]
    print_table(f"{engine}, fast links of {FAST_RATE}, slow ones of {rate}", header, table)
    print("  Medians [quartiles]: of steps, and for ratios of rounds.")
    return [
        verdict(
            f"{engine}, {row.name}: step time over {other.name}",
            paired_ratio(summaries[row], summaries[other]).median,
            limit,
        )
        for row, other, limit in (
            (DELAYED, COMPUTATION, FAST_LIMIT),
            (SLOW_DELAYED, COMPUTATION, SLOW_LIMIT),
            (SLOW_DELAYED, COMMUNICATION, SLOW_LIMIT),
        )
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slow-rate", type=rate_argument, help="default: as computation is slow")
    parser.add_argument(
        "--engine",
        nargs="+",
        choices=["horovod", "tensorflow"],
        default=["horovod", "tensorflow"],
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20, help="timed steps per round")
    parser.add_argument("--rounds", type=int, default=5, help="times that each row is measured")
    parser.add_argument("--output", default="results/double_buffering.json")
    arguments = parser.parse_args()

    facts = machine_facts()
    print_machine_facts(facts)
    engines = []
    for engine in arguments.engine:
        rate, rounds = measure(engine, arguments)
        summaries = {row: summarize(row, rounds[row]) for row in ROWS}
        verdicts = report(engine, rate, summaries)
        rows = [plain(summary) for summary in summaries.values()]
        engines.append({"engine": engine, "slow_rate": rate, "rows": rows, "verdicts": verdicts})
        content = {"machine": facts, "arguments": vars(arguments), "engines": engines}
        write_json(arguments.output, content)


if __name__ == "__main__":
    main()
