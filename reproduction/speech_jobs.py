"""Trainings of `examples/speech` on several workers, to compare their accuracy."""

import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import NamedTuple

import numpy as np
from intervals import interval

TRAIN = pathlib.Path(__file__).parents[1] / "examples" / "speech" / "train.py"
PINNED = pathlib.Path(__file__).parents[1] / "benchmarks" / "pinned.py"
SLOWDOWN = 4  # of the last worker in `paced_speech_worker.py`

# The result of a run that ends because its gradients are no longer finite: no right answers.
DIVERGED = {
    "held_out_accuracy": [0.0],
    "training_accuracy": [0.0],
    "held_out_cross_entropy": [math.inf],
    "bytes_sent_per_step": math.nan,
    "compression_ratio": math.nan,
    "milliseconds_per_step": math.nan,
    "delay_steps": None,
    "mean_minibatch": math.nan,
    "largest_minibatch": math.nan,
    "search_frames": math.nan,
    "frames": [math.nan],
}


class Row(NamedTuple):
    """One way to train, with the program and the arguments that do it."""

    name: str
    options: tuple
    program: pathlib.Path = TRAIN


def train_in_turns(rows, seeds, workers, arguments):
    """Trains each row with each seed.

    Args:
        rows: list of `Row`.
        seeds: list of int.
        workers: int.
        arguments: list of arguments of `train.py` for all rows.

    Returns:
        Lists of results of `train.py`, by name of the row.
    """
    results = {row.name: [] for row in rows}
    for seed in seeds:
        for row in rows:
            result = train(row, seed, workers, arguments)
            results[row.name].append(result)
            print(
                f"  seed {seed}, {row.name}: {result['held_out_accuracy'][-1]:.2%}, "
                f"{result['milliseconds_per_step']:.0f} ms per step",
                flush=True,
            )
    return results


def train(row, seed, workers, arguments):
    """Trains a row with a seed. Returns the results of `train.py`, or `DIVERGED`."""
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder) / "results.json"
        command = [
            str(pathlib.Path(sys.executable).with_name("horovodrun")),
            *("-np", str(workers), sys.executable, str(PINNED), str(row.program)),
            *arguments,
            *row.options,
            *("--seed", str(seed), "--output", str(output)),
        ]
        environment = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ}
        job = subprocess.run(command, env=environment, capture_output=True, text=True)
        if job.returncode != 0 and "Gradients must be finite" in job.stdout + job.stderr:
            return DIVERGED
        if job.returncode != 0 or not output.exists():
            raise SystemExit(f"{' '.join(command)}\nfailed:\n{job.stdout}\n{job.stderr}")
        return json.loads(output.read_text())


def accuracies(results):
    """Returns the held-out frame accuracy at the end, in percent."""
    return np.array([100 * result["held_out_accuracy"][-1] for result in results])


ACCURACY_HEADER = ["frame accuracy [%]", "per seed", "cross entropy"]


def accuracy_cells(results):
    """Returns the cells under `ACCURACY_HEADER` for the runs of a row."""
    mean, half = interval(accuracies(results))
    return [
        f"{mean:.2f} +- {half:.2f}",
        " ".join(f"{value:.2f}" for value in accuracies(results)),
        f"{np.mean([result['held_out_cross_entropy'][-1] for result in results]):.3f}",
    ]
