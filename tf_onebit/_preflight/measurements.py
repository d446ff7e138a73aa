"""Measurements that a plan is made from."""

import dataclasses
import functools
from collections.abc import Sequence

from tf_onebit._measurement import measure_block, measure_exchange, with_world_size
from tf_onebit._preflight.block_ends import BlockEnd
from tf_onebit._preflight.command import announce
from tf_onebit._preflight.computation import ModelInStep
from tf_onebit._preflight.doubts import doubts_about
from tf_onebit._training.building import with_moments
from tf_onebit._training.local_updates import expected_moments_of
from tf_onebit._training.model_optimizers import inner_optimizer
from tf_onebit.exchanges import FullPrecision, OneBit, Threshold
from tf_onebit.exchanges.schedule import innermost
from tf_onebit.planner import Method, with_more_workers

FULL_PRECISION = "full precision"
_MOST_SECONDS_OF_OTHERS = 1.0
_RUNS_OF_OTHERS = 1


@dataclasses.dataclass(frozen=True)
class Measurements:
    """Measurements of a model on this machine.

    Attributes:
        per_replica_batch_size: number of samples of a worker in a step: the requested number, or
            the only one that the model takes.
        sizes: number of values of each gradient.
        has_sparse: whether some gradients are sparse. Larger batches send more rows of these.
        computations: dictionary: `planner.Computation` by number of samples of a worker, while all
            workers compute.
        alone_seconds: computation of a step while only the first worker computes.
        methods: dictionary: list of `planner.Method` by number of workers, from the one that
            changes training least.
        links: dictionary: `planner.Link` by kind of collective, between `measured_workers`.
        measured_workers: number of workers that exchanged messages, or 1 if links are assumed.
            Assumed links are the same for any number of workers.
        doubts: list of sentences on unreliable measurements.
    """

    per_replica_batch_size: int
    sizes: list
    has_sparse: bool
    computations: dict
    alone_seconds: float
    methods: dict
    links: dict
    measured_workers: int
    doubts: Sequence[str] = ()

    def links_of(self, workers):
        """Returns the links between another number of workers than was measured."""
        if self.measured_workers == 1:
            return self.links
        return with_more_workers(self.links, self.measured_workers, workers)


def measure(model, workers, links, world_sizes, options):
    """Measures the times of a model, of exchanges and of links, without a change of the model.

    Args:
        model: Keras model, compiled.
        workers: `Links` or `Alone`.
        links: dictionary of `planner.Link`, or None to measure them.
        world_sizes: list of numbers of workers to plan for, each at least 2.
        options: object with `per_replica_batch_size`, `target_density`, `sync_period` and
            `unknown_size`. Half and twice the batch size are measured, too, unless the model takes
            one size only.

    Returns:
        `Measurements`.

    Raises:
        ValueError: for a model that cannot be measured, and without enough memory for a step.
    """
    measured_workers = 1 if links else workers.world_size
    if not links:
        announce(workers, f"links between {measured_workers} workers")
        links = workers.measure()
    step = ModelInStep(model, options.unknown_size)
    try:
        size = options.per_replica_batch_size
        batch_sizes = step.fixed_batch_sizes or {max(1, size // 2), size, 2 * size}
        size = size if size in batch_sizes else min(batch_sizes)
        computations = _computations(step, size, batch_sizes, workers)
        if size not in computations:
            raise ValueError(
                f"A worker has too little memory for a step. Received: {size} samples per worker "
                f"and step. {_fewer(computations)}"
            )
        alone_seconds = computations[size].seconds
        if workers.world_size > 1:
            alone_seconds = alone_seconds_of(step, size, workers) or alone_seconds
        specs, rows = step.specs(), step.rows(size)
        ends = [BlockEnd.of(model, step.optimizer, compresses) for compresses in (False, True)]
    finally:
        step.restore()
    sizes = [spec.size for spec in specs]
    workers.wait_for_all()
    block_seconds = measure_block(sum(sizes))
    in_full_precision = _InFullPrecision()
    optimizer = inner_optimizer(model.optimizer)
    candidates = _candidates(optimizer, options.target_density)
    in_steps = [
        with_moments(exchange, expected_moments_of(optimizer, exchange))
        for exchange in candidates.values()
    ]
    methods = {}
    for world_size in world_sizes:
        announce(workers, f"the exchange between {world_size} workers")
        # Coding depends little on the number of workers, so others than the job's get fewer runs.
        well = world_size in (workers.world_size, world_sizes[0])
        runs = {} if well else {"runs": _RUNS_OF_OTHERS}
        exchanges = _Exchanges(
            candidates, in_steps, specs, rows, workers, world_size, in_full_precision, **runs
        )
        methods[world_size] = [
            *exchanges.methods(),
            *exchanges.blocks(ends, block_seconds, options.sync_period),
        ]
    return Measurements(
        size,
        sizes,
        any(spec.sparse for spec in specs),
        computations,
        alone_seconds,
        methods,
        links,
        measured_workers,
        doubts_about(computations, step.scatter),
    )


def _computations(step, size, batch_sizes, workers):
    """Returns `planner.Computation` by number of samples, as far as memory allows: dictionary."""
    computations = {}
    for other in sorted(batch_sizes):
        # Predictions are made for one size. The other sizes tell how times change with it.
        seconds = {} if other == size else {"most_seconds": _MOST_SECONDS_OF_OTHERS}
        announce(workers, f"a step of {other} samples")
        computation = step.measure(other, workers, **seconds)
        if computation is None:
            break
        computations[other] = computation
    return computations


def _fewer(computations):
    """Returns a remedy for too little memory, in words."""
    if computations:
        return f"Give fewer: --per-replica-batch-size {max(computations)}."
    return "Give fewer with --per-replica-batch-size, or return a model with smaller batches."


def alone_seconds_of(step, per_replica_batch_size, workers):
    """Returns on all workers the seconds of a step of the first worker while the others wait.

    Returns 0 if the first worker has too little memory, as may happen after larger batches.
    """
    seconds = 0.0
    if workers.rank == 0:
        seconds = step.measure_alone(per_replica_batch_size) or 0.0
    return workers.slowest(seconds)[0]


def _candidates(optimizer, target_density):
    """Returns the exchanges to plan with, ours and the user's own: dictionary by name.

    Ours come first, ordered by how much they change training, the least first.
    """
    candidates = {
        FULL_PRECISION: FullPrecision(),
        "1-bit": OneBit(),
        "threshold": Threshold(target_density=target_density),
    }
    exchange = getattr(optimizer, "gradient_exchange", None)
    own = None if exchange is None else innermost(exchange.template)
    if own is None or own.trains_apart or type(own) in map(type, candidates.values()):
        return candidates
    return candidates | {type(own).__name__: own}


class _Exchanges:
    """Measured exchanges between a number of workers, and the methods that use them.

    Args:
        candidates: dictionary of exchanges by name.
        in_steps: list of the same exchanges with the moments that they have in steps, but not in
            blocks.
        specs, rows: what `measure_exchange` takes.
        workers: workers of this job.
        world_size: number of workers.
        in_full_precision: `_InFullPrecision`.
        runs: further arguments of `measure_exchange`.
    """

    def __init__(
        self, candidates, in_steps, specs, rows, workers, world_size, in_full_precision, **runs
    ):
        self._candidates, self._in_steps, self._specs = candidates, in_steps, specs
        self._world_size, self._runs = world_size, runs
        self._in_full_precision = in_full_precision
        self._buckets = []
        for exchange in in_steps:
            workers.wait_for_all()  # workers that share a processor share it all the time
            self._buckets.append(self._measured(exchange, specs, rows))

    def _measured(self, exchange, specs, rows=None):
        measured = measure_exchange
        if isinstance(exchange, FullPrecision):
            measured = self._in_full_precision
        return measured(exchange, specs, self._world_size, rows, **self._runs)

    def methods(self):
        """Returns the methods that exchange gradients in every step: list of `planner.Method`."""
        methods = []
        for (name, exchange), buckets in zip(self._candidates.items(), self._buckets, strict=True):
            what = {"buckets": buckets, "bucket_bytes": exchange.bucket_bytes, "template": exchange}
            methods.append(Method(name, **what))
            if name != FULL_PRECISION and exchange.can_be_delayed:
                methods.append(Method(f"{name}, delayed", delay=1, **what))
        return methods

    def blocks(self, ends, block_seconds, sync_period):
        """Returns the methods that train in blocks: list of `planner.Method`.

        Args:
            ends: list of `BlockEnd` in full precision and with 1-bit, or None in place of them.
            block_seconds: as from `measure_block`.
            sync_period: number of steps.
        """
        methods = []
        of_weights = zip(
            ends, self._candidates.items(), self._in_steps, self._buckets, strict=False
        )
        for end, (name, exchange), in_steps, buckets in of_weights:
            if end is None:
                continue
            # Embeddings send all rows, not only a step's.
            if end.weights != self._specs or in_steps is not exchange:
                buckets = self._measured(exchange, end.weights)
            in_full_precision = functools.partial(self._measured, FullPrecision())
            of_block = end.buckets(buckets, in_full_precision, block_seconds)
            name = f"blocks of {sync_period}, {name}"
            methods.append(Method(name, of_block, sync_period=sync_period, template=exchange))
        return methods


class _InFullPrecision:
    """`measure_exchange` in full precision, once per dense gradients for all numbers of workers."""

    def __init__(self):
        self._dense = {}

    def __call__(self, exchange, specs, world_size, rows, **runs):
        if any(spec.sparse for spec in specs):
            return measure_exchange(exchange, specs, world_size, rows, **runs)
        key = tuple(dataclasses.replace(spec, name="") for spec in specs)
        if key not in self._dense:
            buckets = measure_exchange(exchange, specs, world_size, **runs)
            self._dense[key] = buckets, world_size
        return with_world_size(*self._dense[key], world_size)
