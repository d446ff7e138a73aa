"""Tables 1 and 2 of Chen et al. 2020 in small, and compressed blocks: rows, tables, verdicts."""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from bmuf_run import BLOCK_MOMENTUM, FULL_PRECISION, ONE_BIT, SENT_MOMENTS
from intervals import CONFIDENCE, TOLERANCE_POINTS, interval
from report import print_table, verdict
from strom_tables import Outcomes

BLOCKS_PER_WORKER = 10  # the least with which block momentum shows an effect: 10 / (1 - eta)
BETA_1 = 0.5  # the paper recommends it with block momentum
COLLAPSE_POINTS = 5
TABLE_1_WORKERS, TABLE_1_PERIOD = (32,), 8
COMPRESSED_WORKERS, COMPRESSED_PERIOD = (2, 8), 16
KEEPING_WORKERS = 8  # in tables of workers that keep their moments
FRAGMENTS, FRAGMENTS_POINTS = ((3, 0), (3, 5), (3, 8), (1, 8), (1, 16)), 0.2
SPARSE = (
    (ONE_BIT, BLOCK_MOMENTUM),
    ("threshold 1/16", BLOCK_MOMENTUM),
    ("top-k 1/16", BLOCK_MOMENTUM),
    ("top-k 1/64", BLOCK_MOMENTUM),
    (FULL_PRECISION, "DiLoCo"),
    ("top-k 1/64", "SparseLoCo"),
)
HEADER = ["", "frame accuracy [%]", "points lost", "cross entropy", "blocks / N", "bytes per step"]
MOMENTS = {"average": "averaged", "bmuf_adam": "corrected"}


class Row(NamedTuple):
    """A training, and the one that it is compared with."""

    run: object
    reference: object


class Table(NamedTuple):
    """Rows to compare.

    Attributes:
        title: str.
        rows: dictionary of `Row`, by name.
        seeds: list of int.
        judge: function of the rows' losses, which prints and returns verdicts.
    """

    title: str
    rows: dict
    seeds: list
    judge: Callable

    @property
    def runs(self):
        return [
            dataclasses.replace(run, seed=seed)
            for seed in self.seeds
            for row in self.rows.values()
            for run in (row.reference, row.run)
        ]

    def report(self, results):
        """Prints the table, and prints and returns the verdicts on its claims."""
        losses = Losses(self, results)
        cells = [[name, *losses.cells(name)] for name in self.rows]
        print_table(f"{self.title}; seeds {self.seeds}, {CONFIDENCE:.0%}", HEADER, cells)
        print()
        return self.judge(losses)


class Losses:
    """The losses of accuracy of a table's rows.

    Args:
        table: `Table`.
        results: results of `train`, by `Run`.
    """

    def __init__(self, table, results):
        self.rows = table.rows
        self._outcomes = Outcomes(table.seeds, results)

    def _accuracy(self, run):
        return self._outcomes.samples(run, "accuracy_percent")

    def of(self, name):
        """Returns the points of accuracy lost: mean, and half its confidence interval."""
        run, reference = self.rows[name]
        return interval(self._accuracy(reference) - self._accuracy(run))

    def between(self, better, worse):
        """Returns the points by which one row is better than another."""
        better, worse = self.rows[better].run, self.rows[worse].run
        return interval(self._accuracy(better) - self._accuracy(worse))

    def cells(self, name):
        run, reference = self.rows[name]
        mean, half = interval(self._accuracy(run))
        lost, half_lost = self.of(name)
        sent_bytes = self._outcomes.mean(run, "bytes")  # older results do not have it
        return [
            f"{mean:.2f} +- {half:.2f}",
            "" if run == reference else f"{lost:+.2f} +- {half_lost:.2f}",
            f"{np.mean(self._outcomes.samples(run, 'cross_entropy')):.3f}",
            f"{run.blocks / run.workers:g}" if run.blocks else "",
            f"{sent_bytes:,.0f}" if math.isfinite(sent_bytes) else "",
        ]

    def none(self, name):
        """Returns verdicts on the claim that a row loses hardly anything."""
        mean, half = self.of(name)
        claim = f"{name}: points of accuracy lost"
        return [
            verdict(claim, mean, TOLERANCE_POINTS),
            verdict(f"{claim}, upper end of the interval", mean + half, TOLERANCE_POINTS),
        ]


def moments_of(base, seeds):
    """Returns table 1: the treatment of Adam's moments at the end of a block."""
    rows = {"one node": Row(base, base)}
    for workers in TABLE_1_WORKERS:
        for moments in MOMENTS:
            for beta_1 in (base.beta_1, BETA_1):
                run = dataclasses.replace(
                    base,
                    workers=workers,
                    sync_period=TABLE_1_PERIOD,
                    beta_1=beta_1,
                    moments=moments,
                )
                rows[_of_moments(workers, moments, beta_1)] = Row(run, base)
    title = f"Table 1: Adam's moments in blocks of {TABLE_1_PERIOD} steps"
    return Table(title, rows, seeds, _judge_moments)


def _of_moments(workers, moments, beta_1):
    return f"{workers} workers, moments {MOMENTS[moments]}, beta_1 = {beta_1:g}"


def _judge_moments(losses):
    most, usual = max(TABLE_1_WORKERS), next(iter(losses.rows.values())).run.beta_1
    averaged, corrected = (_of_moments(most, moments, usual) for moments in MOMENTS)
    lost, half = losses.of(averaged)
    gained, half_gained = losses.between(corrected, averaged)
    kept, half_kept = losses.of(corrected)
    verdicts = [
        verdict(
            f"{averaged}: collapses, points lost, lower end of the interval",
            lost - half,
            COLLAPSE_POINTS,
            at_most=False,
        ),
        verdict(
            f"{corrected}: points better than averaged, lower end of the interval",
            gained - half_gained,
            TOLERANCE_POINTS,
            at_most=False,
        ),
        verdict(
            f"{corrected}: does not collapse, points lost, upper end of the interval",
            kept + half_kept,
            COLLAPSE_POINTS,
        ),
    ]
    for workers in TABLE_1_WORKERS:
        verdicts += losses.none(_of_moments(workers, "bmuf_adam", BETA_1))
    return verdicts


def scaling(base, seeds, pairs, factors):
    """Returns table 2: numbers of workers and sync periods, against synchronous workers.

    Args:
        base: `Run` of one node.
        seeds: list of int.
        pairs: list of numbers of workers and sync periods.
        factors: dictionary of the synchronous runs' learning rate factors, by number of workers.
    """
    rows = {"one node": Row(base, base)}
    numbers = sorted({workers for workers, _ in pairs})
    for workers in numbers:
        rows[_synchronous(workers)] = Row(synchronous(base, workers, factors[workers]), base)
    for workers, period in sorted(pairs):
        run = dataclasses.replace(base, workers=workers, sync_period=period, beta_1=BETA_1)
        rows[_in_blocks(workers, period)] = Row(run, base)
    title = (
        f"Table 2: numbers of workers and sync periods (tau), {base.minibatches:,} minibatches "
        f"of {base.frames} frames in all\nafter the start; learning rate factors of synchronous "
        "Adam: " + ", ".join(f"{workers}: {factors[workers]:.3g}" for workers in numbers)
    )
    return Table(title, rows, seeds, lambda losses: _judge_scaling(losses, numbers, sorted(pairs)))


def synchronous(base, workers, factor):
    return dataclasses.replace(base, workers=workers, learning_rate_factor=factor)


def _synchronous(workers):
    return f"{workers} workers, synchronous"


def _in_blocks(workers, period):
    return f"{workers} workers, BMUF-Adam, tau {period}"


def _judge_scaling(losses, numbers, pairs):
    verdicts = []
    if len(numbers) > 1:
        few, many = _synchronous(numbers[0]), _synchronous(numbers[-1])
        degraded, half = losses.between(few, many)
        claim = f"{many}: points worse than {few}, lower end of the interval"
        verdicts.append(verdict(claim, degraded - half, TOLERANCE_POINTS, at_most=False))
    for workers, period in pairs:
        name = _in_blocks(workers, period)
        verdicts += losses.none(name)
        gained, half = losses.between(name, _synchronous(workers))
        claim = f"{name}: points better than synchronous, lower end of the interval"
        verdicts.append(verdict(claim, gained - half, 0, at_most=False))
    return verdicts


def compressed(base, seeds):
    """Returns the table of blocks that are exchanged with one bit, against full precision."""
    ways = [(FULL_PRECISION, "none"), (ONE_BIT, "full"), (ONE_BIT, "default")]
    return _compressed("Compressed blocks", base, seeds, COMPRESSED_WORKERS, ways)


def _with_kept_moments(base):
    """Returns blocks in full precision in which each worker keeps its moments: `Run`."""
    return dataclasses.replace(
        base,
        workers=KEEPING_WORKERS,
        sync_period=COMPRESSED_PERIOD,
        beta_1=BETA_1,
        moments="local",
    )


def fragments(base, seeds):
    """Returns the table of fragments that synchronize in turn, and late, against whole blocks.

    In all of them each worker keeps its moments.
    """
    whole = _with_kept_moments(base)
    rows = {"whole blocks": Row(whole, whole)}
    for count, overlap in FRAGMENTS:
        run = dataclasses.replace(whole, fragments=count, overlap=overlap)
        rows[f"{count} fragments, overlap {overlap}"] = Row(run, whole)
    title = f"Fragments, {KEEPING_WORKERS} workers, blocks of {COMPRESSED_PERIOD} steps"
    return Table(title, rows, seeds, _judge_fragments)


def _judge_fragments(losses):
    return [
        verdict(f"{name}: points of accuracy lost", losses.of(name)[0], FRAGMENTS_POINTS)
        for name, row in losses.rows.items()
        if row.run != row.reference
    ]


def sparse(base, seeds):
    """Returns the table of blocks that send few values, and of others' settings, by bytes.

    In all of them each worker keeps its moments.
    """
    full = _with_kept_moments(base)
    rows = {FULL_PRECISION: Row(full, full)}
    for exchange, outer in SPARSE:
        run = dataclasses.replace(full, exchange=exchange, outer=outer)
        of_others = "" if outer == BLOCK_MOMENTUM else f"{outer}, "
        rows[f"{of_others}{exchange}"] = Row(run, full)
    title = f"Sparse blocks of {COMPRESSED_PERIOD} steps, {KEEPING_WORKERS} workers"
    return Table(title, rows, seeds, _judge_sparse)


def _judge_sparse(losses):
    names = [name for name, row in losses.rows.items() if "top-k 1/16" in row.run.exchange]
    return [verdict for name in names for verdict in losses.none(name)]


def quantized_moments(base, seeds):
    """Returns the table of blocks whose moments are sent with few bits."""
    ways = [(ONE_BIT, "bfloat16"), (ONE_BIT, "one_bit")]
    return _compressed(
        "Moments sent with few bits, blocks", base, seeds, COMPRESSED_WORKERS[:1], ways
    )


def _compressed(title, base, seeds, numbers, ways):
    rows = {}
    for workers in numbers:
        full = dataclasses.replace(
            base, workers=workers, sync_period=COMPRESSED_PERIOD, beta_1=BETA_1
        )
        rows[f"{workers} workers, full precision"] = Row(full, full)
        for exchange, sent in ways:
            run = dataclasses.replace(full, exchange=exchange, sent_moments=sent)
            rows[f"{workers} workers, {exchange}, moments {SENT_MOMENTS[sent]}"] = Row(run, full)
    title = f"{title} of {COMPRESSED_PERIOD} steps, BMUF-Adam"
    return Table(title, rows, seeds, _judge_compressed)


def _judge_compressed(losses):
    names = [
        name
        for name, row in losses.rows.items()
        if row.run.exchange == ONE_BIT and row.run.sent_moments == "default"
    ]
    return [verdict for name in names for verdict in losses.none(name)]
