"""Held-out accuracy in the course of training with each method, on the speech task.

All rows have the same samples, initial weights and order of frames. Further options are passed on
to `train.py`.
"""

import argparse

from one_bit_accuracy import FULL_PRECISION, NO_FEEDBACK, one_bit_rows
from report import machine_facts, print_machine_facts, write_json
from speech_jobs import Row, train_in_turns

ROWS = (
    FULL_PRECISION,
    *one_bit_rows([None]),
    Row("threshold, 1/1000", ("--exchange", "threshold", "--target-density", "0.001")),
    Row("blocks of 16, 1-bit", ("--exchange", "onebit", "--bmuf")),
    NO_FEEDBACK,
)


def main(arguments):
    parser = argparse.ArgumentParser("convergence.py curves", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--output", default="results/curves.json")
    options, others = parser.parse_known_args(arguments)

    facts = machine_facts()
    print_machine_facts(facts)
    results = train_in_turns(ROWS, [options.seed], options.workers, others)
    kept = "frames", "held_out_accuracy", "bytes_sent_per_step"
    curves = {name: {key: run[key] for key in kept} for name, (run,) in results.items()}
    write_json(options.output, {"machine": facts, "options": others, "curves": curves})
