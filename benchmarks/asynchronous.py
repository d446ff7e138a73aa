"""What a slow worker costs the others when they do not wait for it.

    sudo .venv/bin/python benchmarks/asynchronous.py

Four workers on hosts of their own (network namespaces, links of 1 Gbit/s) train the papers' DNN
with `AsynchronousOptimizer`. The last one sleeps after each step until it is four times as slow.
The other three make as many steps as the same processes on the same cores with the pump off, which
train alone. As in `step.py`, Horovod runs there all the same, so that its thread is in both rows.
The last row is without Horovod, too. Rows take turns; steps are counted in the span of time in
which all workers were at it.
"""

import argparse
import pathlib

import numpy as np
from launch import run_workers
from network import hosts_on_a_bridge, rate_argument
from report import Spread, machine_facts, print_machine_facts, print_table, verdict, write_json

WORKER = pathlib.Path(__file__).with_name("asynchronous_worker.py")
ROWS = {
    "asynchronous": ["--pump", "on", "--horovod", "on"],
    "the same, pump off": ["--pump", "off", "--horovod", "on"],
    "the same, Horovod off": ["--pump", "off", "--horovod", "off"],
}
TOGETHER, ALONE, _ = ROWS
LEAST_SPEED = 0.95
# Rounding of some thousand additions to weights below 1; a single delta is ten times as large.
MOST_DIFFERENCE = 2e-6


def steps_per_second(results):
    """Of each worker, in the time in which all were at it."""
    begin = max(result["step_ends"][0] for result in results)
    end = min(result["step_ends"][-1] for result in results)
    counts = [
        np.count_nonzero((begin < np.array(r["step_ends"])) & (np.array(r["step_ends"]) <= end))
        for r in results
    ]
    return [float(count / (end - begin)) for count in counts]


def measure(arguments):
    """Returns, by row, a list of rounds, each the workers' results."""
    rounds = {row: [] for row in ROWS}
    with hosts_on_a_bridge(arguments.workers, arguments.rate) as network:
        for number in range(arguments.rounds):
            for row, of_row in ROWS.items():
                options = ["--slowdown", str(arguments.slowdown), *of_row]
                options += ["--warm-up-steps", str(arguments.warm_up_steps)]
                options += ["--seconds", str(arguments.seconds)]
                results = run_workers(network, WORKER, options)
                rounds[row].append(results)
                speeds = " ".join(f"{speed:.2f}" for speed in steps_per_second(results))
                print(f"  round {number + 1}, {row}: steps per second {speeds}", flush=True)
                weights = [result.pop("weights") for result in results]
                if row == TOGETHER:
                    check_replicas(weights)
    return rounds


def check_replicas(weights):
    """A run counts only if it ended with equal replicas."""
    difference = np.ptp(weights, axis=0).max()
    if difference > MOST_DIFFERENCE:
        raise RuntimeError(f"The replicas' weights differ at the end, by {difference}.")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--slowdown", type=float, default=4.0)
    parser.add_argument("--rate", type=rate_argument, default="1gbit", help="of each link")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=40.0, help="of training in a round")
    parser.add_argument("--warm-up-steps", type=int, default=100)
    parser.add_argument("--output", default="results/asynchronous.json")
    arguments = parser.parse_args()
    facts = machine_facts()
    print_machine_facts(facts)
    rounds = measure(arguments)
    fast = {
        row: [sum(steps_per_second(results)[:-1]) for results in of_row]
        for row, of_row in rounds.items()
    }
    ratio = Spread.of([a / b for a, b in zip(fast[TOGETHER], fast[ALONE], strict=True)])
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
    print()
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
