"""Measures the time of a step of the papers' DNN with and without double buffering.

    sudo .venv/bin/python benchmarks/double_buffering.py

Workers run as in `step.py`: in network namespaces with shaped links, each pinned to its own core.
They train the DNN 429 - 7x2048 - 9304 (45M parameters) with 64 samples each and 1-bit gradients,
over Horovod and in a strategy. The rows of each engine:

- computation alone: gradients are encoded and decoded as usual, but not sent;
- delayed, on links of 1 Gbit/s;
- communication alone, delayed, and not delayed, on links so slow that communication alone takes as
  long as computation. Their rate can be given. Otherwise it follows from the time of the first row,
  the bytes on the interface, and the time of communication beyond these bytes.

Every figure comes from fresh workers, and the rows take turns. A worker has one core. If it is
busier than in computation alone, a step is longer by that time, even with perfect overlap.
"""

import argparse

import numpy as np
from network import hosts_on_a_bridge, rate_argument
from report import plain, print_table, verdict
from rows import (
    Row,
    add_turns,
    in_turns,
    interface_and_memory_cells,
    milliseconds_text,
    paired_ratio,
    pooled,
    summarize,
    train,
    write_reports,
)

FAST_RATE = "1gbit"
# The most that a delayed step may take, in steps of computation alone.
FAST_LIMIT, SLOW_LIMIT = 1.08, 1.15


COMPUTATION = Row("computation alone", "one_bit", ("--send-nothing",), ends_alike=False)
DELAYED = Row("delayed, fast links", "one_bit", ("--delay", "1"))
COMMUNICATION = Row(
    "communication alone, slow links", "one_bit", ("--compute-nothing",), ends_alike=False
)
SLOW_DELAYED = Row("delayed, slow links", "one_bit", ("--delay", "1"))
SLOW = Row("not delayed, slow links", "one_bit")
ON_FAST_LINKS, ON_SLOW_LINKS = (COMPUTATION, DELAYED), (COMMUNICATION, SLOW_DELAYED, SLOW)
ROWS = ON_FAST_LINKS + ON_SLOW_LINKS


def run(row, engine, rate, arguments):
    """Trains a row on fresh workers. Returns the list of their results."""
    with hosts_on_a_bridge(arguments.workers, rate) as network:
        return train(row._replace(engine=engine), network, arguments.steps)


def slow_rate(engine, arguments):
    """Returns the rate at which a step's messages alone take as long as its computation alone."""

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
    """Returns the rate of slow links, and by row a list of rounds with all workers' results."""
    slow = arguments.slow_rate or slow_rate(engine, arguments)
    print(f"  {engine}: slow links have {slow}", flush=True)

    def train_row(row):
        return run(row, engine, FAST_RATE if row in ON_FAST_LINKS else slow, arguments)

    return slow, in_turns(ROWS, arguments.rounds, train_row, note=f"{engine}, ")


def report(engine, rate, summaries):
    """Prints the table of an engine, and returns its verdicts."""
    alone = summaries[COMPUTATION]
    table = []
    for summary in summaries.values():
        table.append(
            [
                summary["row"],
                milliseconds_text(summary["step_seconds"]),
                paired_ratio(summary, alone).text(2),
                f"{1e3 * summary['processor_seconds'].median:.0f}",
                *interface_and_memory_cells(summary, alone),
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


def reports_by_engine(arguments):
    for engine in arguments.engine:
        rate, rounds = measure(engine, arguments)
        summaries = {row: summarize(row, rounds[row]) for row in ROWS}
        verdicts = report(engine, rate, summaries)
        rows = [plain(summary) for summary in summaries.values()]
        yield {"engine": engine, "slow_rate": rate, "rows": rows, "verdicts": verdicts}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slow-rate", type=rate_argument, help="default: as computation is slow")
    add_turns(parser, rounds=5)
    parser.add_argument("--output", default="results/double_buffering.json")
    arguments = parser.parse_args()
    write_reports(arguments, "engines", reports_by_engine(arguments))


if __name__ == "__main__":
    main()
