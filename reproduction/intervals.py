"""Confidence intervals and learning rates of a few paired runs, and tests of claims with them."""

import math

import numpy as np
import scipy.stats

TOLERANCE_POINTS = 0.3
CONFIDENCE = 0.95


def interval(samples):
    """Returns the mean and half the width of its confidence interval, infinite for one sample."""
    half = math.inf
    if len(samples) > 1:
        error = np.std(samples, ddof=1) / math.sqrt(len(samples))
        half = float(error * scipy.stats.t.ppf((1 + CONFIDENCE) / 2, len(samples) - 1))
    return float(np.mean(samples)), half


def best_rate(by_rate, seeds):
    """Returns the rate with the lowest mean loss, and its runs in the order of the seeds.

    Rates that have not been trained with all of the seeds do not count. Without any, it is None.
    If training diverges with all rates, it is the lowest.
    """
    runs = {
        rate: [by_seed[str(seed)] for seed in seeds]
        for rate, by_seed in by_rate.items()
        if all(str(seed) in by_seed for seed in seeds)
    }

    def loss_and_rate(item):
        return np.mean([run["loss"] for run in item[1]]), float(item[0])

    return min(runs.items(), key=loss_and_rate, default=None)


def widest_interval(points, holds):
    """Returns the longest part of ascending positive numbers in which a claim holds throughout.

    Args:
        points: list of positive numbers, ascending.
        holds: list of bool, whether the claim holds at each of them.

    Returns:
        The first and the last number of that part, by the factor between them; None if it holds
        nowhere.

    Example:
        >>> widest_interval([1, 2, 4, 8, 16], [True, False, True, True, False])
        (4, 8)
    """
    widest, first = None, None
    for point, held in zip(points, holds, strict=True):
        if not held:
            first = None
            continue
        first = point if first is None else first
        if widest is None or point / first > widest[1] / widest[0]:
            widest = first, point
    return widest
