"""Accuracy after the same samples: 1-bit gradients against full precision, on the speech task.

Trains `examples/speech` on two workers once per seed and way of exchange. The runs of a seed share
data, initial weights and order of frames, so that their differences are paired. The interval is
Student's, at 95 % confidence, over the seeds. Further options are passed on to `train.py`.
"""

import argparse

from intervals import CONFIDENCE, TOLERANCE_POINTS, interval
from report import machine_facts, print_machine_facts, print_table, verdict, write_json
from speech_jobs import ACCURACY_HEADER, Row, accuracies, accuracy_cells, train_in_turns

FULL_PRECISION = Row("full precision", ("--exchange", "full"))
NO_FEEDBACK = Row("1-bit, no error feedback", ("--exchange", "onebit-no-feedback"))


def one_bit_rows(max_column_sizes):
    rows = []
    for size in max_column_sizes:
        columns = () if size is None else ("--max-column-size", str(size))
        name = "1-bit" if size is None else f"1-bit, columns of {size}"
        rows.append(Row(name, ("--exchange", "onebit", *columns)))
    return rows


def report(results, seeds):
    """Prints the table. Returns, for each row, the mean loss of accuracy and its half interval."""
    full = accuracies(results[FULL_PRECISION.name])
    table, losses = [], {}
    for name, runs in results.items():
        loss = interval(full - accuracies(runs))
        losses[name] = loss
        table.append(
            [
                name,
                *accuracy_cells(runs),
                "" if name == FULL_PRECISION.name else f"{loss[0]:+.2f} +- {loss[1]:.2f}",
                f"{runs[0]['bytes_sent_per_step']:,.0f}",
            ]
        )
    header = [
        "",
        *ACCURACY_HEADER,
        "points lost",
        "bytes per step",
    ]
    print_table(f"held out, after the same samples; seeds {seeds}, {CONFIDENCE:.0%}", header, table)
    return losses


def judge(losses):
    verdicts = []
    print()
    for name, (mean, half) in losses.items():
        if name == NO_FEEDBACK.name:
            claim = f"{name}: points of accuracy lost, lower end of the interval"
            verdicts.append(verdict(claim, mean - half, TOLERANCE_POINTS, at_most=False))
        elif name != FULL_PRECISION.name:
            verdicts.append(verdict(f"{name}: points of accuracy lost", mean, TOLERANCE_POINTS))
            claim = f"{name}: points of accuracy lost, upper end of the interval"
            verdicts.append(verdict(claim, mean + half, TOLERANCE_POINTS))
    return verdicts


def main(arguments):
    parser = argparse.ArgumentParser("convergence.py onebit", description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="paper-small")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--max-column-size", type=int, nargs="+", default=[None])
    parser.add_argument("--output", default="results/convergence.json")
    arguments, training = parser.parse_known_args(arguments)
    facts = machine_facts()
    print_machine_facts(facts)
    rows = [FULL_PRECISION, *one_bit_rows(arguments.max_column_size), NO_FEEDBACK]
    training = ["--preset", arguments.preset, *training]
    results = train_in_turns(rows, arguments.seeds, arguments.workers, training)
    losses = report(results, arguments.seeds)
    content = {"machine": facts, "arguments": vars(arguments), "training": training}
    write_json(arguments.output, content | {"results": results, "verdicts": judge(losses)})
