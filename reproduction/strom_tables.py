"""Tables 2, 3 and 4 of Strom 2015 in small: trainings, printed tables, and claims."""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from intervals import CONFIDENCE, TOLERANCE_POINTS, interval, widest_interval
from report import print_table, verdict

NUMBERS_OF_WORKERS = (1, 2, 4, 8, 16, 32)
WORKERS = 4  # if the number of workers does not vary
TARGET_DENSITY = 0.001
# Factors of the tau that `TARGET_DENSITY` leads to, which compresses about 1000 times.
TAU_FACTORS = (0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0, 8.0)
LEAST_COMPRESSION = 500
LEAST_TAU_RANGE = 8
MOST_BITS_PER_UPDATE = 11  # section 2.5 says 10 to 11
# Compression is the paper's: weights by updates. "On the wire" also counts header and padding.
HEADER = [
    "",
    "frame accuracy [%]",
    "points lost",
    "tau",
    "updates per message",
    "compression",
    "on the wire",
    "Golomb-Rice bits per update",
]


class Table(NamedTuple):
    """A table of the paper.

    Attributes:
        title: str.
        rows: dictionary of `Run`, by the name of the row.
        judge: function of the rows and `Outcomes`, which prints and returns verdicts.
    """

    title: str
    rows: dict
    judge: Callable

    def report(self, outcomes):
        """Prints the table, and prints and returns the verdicts on its claims."""
        rows = [[name, *_cells(run, outcomes)] for name, run in self.rows.items()]
        print_table(f"{self.title}; seeds {outcomes.seeds}, {CONFIDENCE:.0%}", HEADER, rows)
        print()
        return self.judge(self.rows, outcomes)


class Outcomes:
    """The results of runs.

    Args:
        seeds: list of int.
        results: results of `train`, by `Run`.
    """

    def __init__(self, seeds, results):
        self.seeds = seeds
        self._results = results

    def samples(self, run, figure):
        """Returns a figure of a run for each of the seeds: array."""
        runs = [dataclasses.replace(run, seed=seed) for seed in self.seeds]
        return np.array([self._results[run].get(figure, math.inf) for run in runs])

    def mean(self, run, figure):
        return float(np.mean(self.samples(run, figure)))

    def points_lost(self, run):
        """Returns the points lost against full precision: mean, and half its interval."""
        full_precision = self.samples(run.full_precision, "accuracy_percent")
        return interval(full_precision - self.samples(run, "accuracy_percent"))


def _cells(run, outcomes):
    accuracy, half = interval(outcomes.samples(run, "accuracy_percent"))
    cells = [f"{accuracy:.2f} +- {half:.2f}"]
    if run == run.full_precision:
        return cells + [""] * (len(HEADER) - 2)
    lost, half = outcomes.points_lost(run)
    return [
        *cells,
        f"{lost:+.2f} +- {half:.2f}",
        f"{outcomes.mean(run, 'tau'):.4g}",
        f"{outcomes.mean(run, 'updates'):,.1f}",
        f"{outcomes.mean(run, 'compression_ratio'):,.0f}",
        f"{outcomes.mean(run, 'compression_ratio_on_the_wire'):,.0f}",
        f"{outcomes.mean(run, 'bits_per_update'):.1f}",
    ]


def pilot(base):
    """Returns the run that finds the scale of tau."""
    return dataclasses.replace(base, workers=WORKERS, target_density=TARGET_DENSITY)


def scaling(base):
    """Returns table 2: the number of workers."""
    rows = {"full precision, one node": base.full_precision}
    for workers in NUMBERS_OF_WORKERS:
        name = f"{workers} worker{'s' * (workers > 1)}"
        rows[name] = dataclasses.replace(pilot(base), workers=workers)
    title = (
        f"Table 2: number of workers, each sending one value in {1 / TARGET_DENSITY:g}. They share "
        f"minibatches of {base.global_batch_size} frames\n(in the paper each has 1024, but so few "
        "data would be used up in a few hundred steps)"
    )
    return Table(title, rows, _judge_scaling)


def _judge_scaling(rows, outcomes):
    verdicts = []
    for name, run in rows.items():
        if run != run.full_precision:
            mean, half = outcomes.points_lost(run)
            verdicts.append(verdict(f"{name}: points of accuracy lost", mean, TOLERANCE_POINTS))
            claim = f"{name}: points of accuracy lost, upper end of the interval"
            verdicts.append(verdict(claim, mean + half, TOLERANCE_POINTS))
    return verdicts


def thresholds(base, tau):
    """Returns table 3: the threshold, around a `tau`."""
    rows = {"full precision, one node": base.full_precision}
    for factor in TAU_FACTORS:
        rows[f"tau = {factor:g} x {tau:.4g}"] = dataclasses.replace(
            base, workers=WORKERS, tau=factor * tau
        )
    return Table(f"Table 3: thresholds, {WORKERS} workers", rows, _judge_thresholds)


def _judge_thresholds(rows, outcomes):
    runs = [run for run in rows.values() if run != run.full_precision]
    lost = [outcomes.points_lost(run) for run in runs]
    compression = [outcomes.mean(run, "compression_ratio") for run in runs]
    bits = [outcomes.mean(run, "bits_per_update") for run in runs]
    small = [ratio > LEAST_COMPRESSION for ratio in compression]
    good = [mean <= TOLERANCE_POINTS and s for (mean, _), s in zip(lost, small, strict=True)]
    widest = widest_interval([run.tau for run in runs], good)
    ends = f"{widest[0]:.4g} to {widest[1]:.4g}" if widest else "none"
    return [
        verdict(
            f"widest range of tau that loses at most {TOLERANCE_POINTS} points and compresses more "
            f"than {LEAST_COMPRESSION} times ({ends}): upper end by lower",
            widest[1] / widest[0] if widest else 0.0,
            LEAST_TAU_RANGE,
            at_most=False,
        ),
        verdict(
            "the highest tau degrades accuracy: points lost, lower end of the interval",
            lost[-1][0] - lost[-1][1],
            TOLERANCE_POINTS,
            at_most=False,
        ),
        verdict("the lowest tau degrades compression", compression[0], LEAST_COMPRESSION),
        verdict("the lowest tau costs no accuracy: points lost", lost[0][0], TOLERANCE_POINTS),
        verdict(
            f"Golomb-Rice bits per update, the least of those compressed more than "
            f"{LEAST_COMPRESSION} times",
            min((b for b, s in zip(bits, small, strict=True) if s), default=math.inf),
            MOST_BITS_PER_UPDATE,
        ),
    ]


def model_sizes(base, tau):
    """Returns table 4: the size of the model at one `tau`, deeper and wider as in the paper."""
    rows = {}
    for depth, width in (
        (base.depth, base.width),
        (base.depth + 2, base.width),
        (base.depth, 2 * base.width),
        (base.depth, 3 * base.width),
    ):
        rows[f"{depth} x {width}"] = dataclasses.replace(
            base, depth=depth, width=width, workers=WORKERS, tau=tau
        )
    return Table(f"Table 4: sizes of the model, {WORKERS} workers", rows, _judge_model_sizes)


def _judge_model_sizes(rows, outcomes):
    runs = list(rows.values())
    weights = [outcomes.mean(run, "weights") for run in runs]
    updates = [outcomes.mean(run, "updates") for run in runs]
    return [
        verdict(
            f"from {weights[0] / 1e6:.2f} to {w / 1e6:.2f} million weights: growth of the updates "
            "by that of the weights",
            u / updates[0] / (w / weights[0]) if updates[0] else math.inf,
            1,
        )
        for w, u in zip(weights[1:], updates[1:], strict=True)
    ]
