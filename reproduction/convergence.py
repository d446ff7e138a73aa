"""Accuracy after the same samples, with and without compression.

    .venv/bin/python reproduction/convergence.py               # 1-bit gradients
    .venv/bin/python reproduction/convergence.py threshold     # threshold-sparse updates
    .venv/bin/python reproduction/convergence.py asynchronous  # the same, a slow worker among them
    .venv/bin/python reproduction/convergence.py bmuf          # training in blocks, BMUF-Adam
    .venv/bin/python reproduction/convergence.py optimizers    # optimizers with moments
    .venv/bin/python reproduction/convergence.py tables        # recipes of Seide et al. (2014)
    .venv/bin/python reproduction/convergence.py curves        # in the course of training
    .venv/bin/python reproduction/convergence.py threshold --help

The runs of a seed share data, initial weights and order of frames, so that their differences are
paired. Intervals are Student's, at 95 % confidence, over the seeds.
"""

import pathlib
import sys

# Figures are printed and written like those in benchmarks, by their `report.py`.
sys.path.append(str(pathlib.Path(__file__).parents[1] / "benchmarks"))

METHODS = ("onebit", "threshold", "asynchronous", "bmuf", "optimizers", "tables", "curves")


def main():
    method, arguments = METHODS[0], sys.argv[1:]
    if arguments and arguments[0] in METHODS:
        method, *arguments = arguments
    # TensorFlow takes seconds to import, and not all of them train in this process.
    if method == "threshold":
        from threshold_accuracy import main as compare
    elif method == "asynchronous":
        from asynchronous_accuracy import main as compare
    elif method == "bmuf":
        from bmuf_accuracy import main as compare
    elif method == "optimizers":
        from optimizer_accuracy import main as compare
    elif method == "tables":
        from seide_accuracy import main as compare
    elif method == "curves":
        from curves import main as compare
    else:
        from one_bit_accuracy import main as compare
    compare(arguments)


if __name__ == "__main__":
    main()
