"""Partition of a model's gradients into buckets, each with the schedule of its exchange."""

import dataclasses
from collections.abc import Sequence

from tf_onebit.exchanges.arguments import is_excluded
from tf_onebit.exchanges.base import FLOAT_BYTES
from tf_onebit.exchanges.full_precision import FullPrecision
from tf_onebit.exchanges.gradients import GradientSpec
from tf_onebit.exchanges.indexed_slices import SparseGather
from tf_onebit.exchanges.schedule import AnyExchange, Schedule, schedule_of


def partition(
    template: AnyExchange, specs: Sequence[GradientSpec], takes_updates: bool
) -> list[tuple[Schedule, list[int]]]:
    """Assigns gradients to buckets, in the order in which a backward pass computes them.

    Args:
        template: the user's exchange.
        specs: list of `GradientSpec`.
        takes_updates: see `Bucketed`.

    Returns:
        List of (`Schedule`, list of gradient indices).
    """
    schedule = schedule_of(template)
    takes, bucket_bytes = schedule.exchange.dtypes, schedule.exchange.bucket_bytes
    in_full_precision, sparse = _beside(schedule, template, takes_updates)
    buckets: list[tuple[Schedule, list[int]]] = []
    open_buckets: dict[tuple[int, str, bool], tuple[list[int], int]] = {}
    for index, spec in reversed(list(enumerate(specs))):
        chosen = schedule
        if spec.sparse and not schedule.exchange.takes_sparse:
            chosen = sparse
        elif spec.dtype not in takes or is_excluded(spec.name, template):
            chosen = in_full_precision
        # Other workers exchange the same copies with other parts. What a bucket adapts to its
        # gradients, such as tau, must be the same for copies.
        kind = id(chosen), spec.dtype, spec.is_part
        indices, filled_bytes = open_buckets.get(kind, ([], 0))
        if not 0 < filled_bytes < bucket_bytes:
            indices, filled_bytes = [], 0
            buckets.append((chosen, indices))
        indices.append(index)
        filled_bytes += max(1, spec.size) * FLOAT_BYTES
        open_buckets[kind] = indices, filled_bytes
    return buckets


def _beside(
    schedule: Schedule, template: AnyExchange, takes_updates: bool
) -> tuple[Schedule, Schedule]:
    """Returns the schedules of full-precision gradients and of sparse ones.

    They have the same delay as compressed gradients. A warm-up matters to them only with a delay,
    which begins after it, or if workers exchange updates, which are alike during it.
    """
    has_warm_up = schedule.delay or takes_updates
    beside = schedule if has_warm_up else dataclasses.replace(schedule, warm_up=None)
    uncompressed = template.uncompressed()
    if uncompressed is None:
        full = FullPrecision(schedule.exchange.bucket_bytes)
        in_full_precision = dataclasses.replace(beside, exchange=full)
    else:
        in_full_precision = dataclasses.replace(schedule_of(uncompressed), delay=schedule.delay)
    return in_full_precision, dataclasses.replace(beside, exchange=SparseGather())
