"""Measures the time of Horovod's collectives over shaped links, against the link's own time.

    sudo .venv/bin/python benchmarks/collectives.py --rate 100mbit

A worker sends and receives over the same link in opposite directions. A collective that uses both
directions at once takes 1 x the time of the bytes that a worker sends. If the directions take
turns, it takes 2 x.
"""

import argparse
import pathlib

import numpy as np
from launch import run_workers
from network import hosts_on_a_bridge, rate_argument
from report import Spread, machine_facts, plain, print_machine_facts, print_table, write_json

WORKER = pathlib.Path(__file__).with_name("collectives_worker.py")


def measure(network, sent_bytes, repetitions):
    """Returns the ratio of times by collective: dictionary of `Spread`."""
    goodput = network.goodput_bits_per_second()
    arguments = ["--bytes", str(sent_bytes), "--repetitions", str(repetitions)]
    results = run_workers(network, WORKER, arguments)
    seconds_of_link = 8 * sent_bytes / goodput
    return {
        name: Spread.of(np.max([r[name] for r in results], axis=0) / seconds_of_link)
        for name in results[0]
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=rate_argument, nargs="+", default=["1gbit", "100mbit"])
    parser.add_argument("--bytes", type=int, nargs="+", default=[250_000, 1_000_000, 4_000_000])
    parser.add_argument("--repetitions", type=int, default=12)
    parser.add_argument("--output", default="results/collectives.json")
    arguments = parser.parse_args()
    facts = machine_facts()
    print_machine_facts(facts)
    measured = []
    for rate in arguments.rate:
        with hosts_on_a_bridge(2, rate) as network:
            by_size = {
                sent_bytes: measure(network, sent_bytes, arguments.repetitions)
                for sent_bytes in arguments.bytes
            }
        rows = [
            [f"{sent_bytes:,}", *(spread.text(2) for spread in spreads.values())]
            for sent_bytes, spreads in by_size.items()
        ]
        header = ["bytes that a worker sends", *by_size[arguments.bytes[0]]]
        print_table(f"2 workers, links of {rate}: x the time of these bytes", header, rows)
        measured.append({"rate": rate, "by_bytes": {k: plain(v) for k, v in by_size.items()}})
    content = {"machine": facts, "arguments": vars(arguments), "rates": measured}
    write_json(arguments.output, content)


if __name__ == "__main__":
    main()
