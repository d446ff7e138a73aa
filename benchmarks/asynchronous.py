"""Measures the cost of a slow worker for others that do not wait for it.

    sudo .venv/bin/python benchmarks/asynchronous.py

Four workers on hosts of their own (network namespaces, links of 1 Gbit/s) train the papers' DNN
with `AsynchronousOptimizer`. The last one sleeps after each step until it is four times as slow.
The other three should make as many steps as the same processes with the pump off, in which case
each trains alone. Stretches of both kinds take turns within one job. Horovod's thread runs in both,
as in `step.py`. Steps are counted in the span of time in which all workers trained.
"""

import argparse
import pathlib

import numpy as np
from launch import run_workers
from network import hosts_on_a_bridge, rate_argument
from report import Spread, machine_facts, print_machine_facts, print_table, verdict, write_json

WORKER = pathlib.Path(__file__).with_name("asynchronous_worker.py")
TOGETHER, WITHOUT = "asynchronous", "the same, pump off"
LEAST_SPEED = 0.95
# Some thousand additions to weights below 1 round like this. A single delta is ten times as large.
MOST_DIFFERENCE = 2e-6


def steps_per_second(results):
    """Returns the steps per second of each worker, in the time in which all made steps."""
    begin = max(result["step_ends"][0] for result in results)
    end = min(result["step_ends"][-1] for result in results)
    counts = [
        np.count_nonzero((begin < np.array(r["step_ends"])) & (np.array(r["step_ends"]) <= end))
        for r in results
    ]
    return [float(count / (end - begin)) for count in counts]


def measure(arguments):
    """Returns a list of stretches by row, each with the measurements of all workers."""
    options = ["--slowdown", str(arguments.slowdown), "--rounds", str(arguments.rounds)]
    options += ["--warm-up-steps", str(arguments.warm_up_steps)]
    options += ["--seconds", str(arguments.seconds)]
    with hosts_on_a_bridge(arguments.workers, arguments.rate) as network:
        workers = run_workers(network, WORKER, options)
    check_replicas([worker["weights"] for worker in workers])
    return {
        row: list(zip(*(worker[mode] for worker in workers), strict=True))
        for row, mode in [(TOGETHER, "together"), (WITHOUT, "without")]
    }


def check_replicas(weights):
    """Raises RuntimeError unless all replicas are equal: only then does a job count."""
    difference = np.ptp(weights, axis=0).max()
    if difference > MOST_DIFFERENCE:
        raise RuntimeError(f"The replicas' weights differ at the end, by {difference}.")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--slowdown", type=float, default=4.0)
    parser.add_argument("--rate", type=rate_argument, default="1gbit", help="of each link")
    parser.add_argument("--rounds", type=int, default=8, help="of a stretch in each mode")
    parser.add_argument("--seconds", type=float, default=20.0, help="of a stretch")
    parser.add_argument("--warm-up-steps", type=int, default=300, help="until tau has settled")
    parser.add_argument("--output", default="results/asynchronous.json")
    arguments = parser.parse_args()
    facts = machine_facts()
    print_machine_facts(facts)
    rounds = measure(arguments)
    fast = {
        row: [sum(steps_per_second(results)[:-1]) for results in of_row]
        for row, of_row in rounds.items()
    }
    ratios = [a / b for a, b in zip(fast[TOGETHER], fast[WITHOUT], strict=True)]
    ratio = Spread.of(ratios)
    table = []
    for row, of_row in rounds.items():
        slow = Spread.of([steps_per_second(results)[-1] for results in of_row])
        staleness = np.concatenate([results[0]["staleness"] for results in of_row])
        table.append(
            [
                row,
                Spread.of(fast[row]).text(2),
                slow.text(2),
                f"{np.median(staleness):.0f}, {max(staleness):.0f}",
                f"{of_row[0][0]['density']:.1e}",
            ]
        )
    header = ["", "steps/s of the fast", "of the slow", "staleness: median, most", "density"]
    print_table(f"{arguments.workers} workers, links of {arguments.rate}", header, table)
    print(f"\nasynchronous over pump off, by round: {' '.join(f'{one:.3f}' for one in ratios)}\n")
    verdicts = [
        verdict(
            "speed of the fast workers, of that without a pump",
            ratio.median,
            LEAST_SPEED,
            at_most=False,
        )
    ]
    content = {"machine": facts, "arguments": vars(arguments), "rounds": rounds}
    write_json(arguments.output, content | {"verdicts": verdicts})


if __name__ == "__main__":
    main()
