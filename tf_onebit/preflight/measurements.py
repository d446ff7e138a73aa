"""Everything that a plan is made from."""

import dataclasses

from tf_onebit.exchanges import FullPrecision, OneBit, Threshold
from tf_onebit.measurement import Alone, measure_block, measure_exchange, with_block_work
from tf_onebit.planner import Method, interpolated, narrowed, with_more_workers
from tf_onebit.preflight.computation import ModelInStep

FULL_PRECISION = "full precision"


@dataclasses.dataclass(frozen=True)
class Measurements:
    """What was measured of a model on this machine.

    Attributes:
        per_replica_batch_size: number of samples of a worker in a step: what was asked for, or the
            only one that the model takes.
        sizes: number of values of each gradient.
        computations: dictionary: `planner.Computation` by number of samples of a worker, while all
            workers compute.
        alone_seconds: computation of a step while only the first worker computes.
        methods: dictionary: list of `planner.Method` by number of workers, from the one that
            changes training least.
        estimates: the same, of what other packages or Horovod's own compression do, by the bytes
            they send.
        links: dictionary: `planner.Link` by kind of collective, between `measured_workers`.
        measured_workers: number of workers that exchanged messages; 1 if links are assumed, which
            are then the same for any number.
    """

    per_replica_batch_size: int
    sizes: list
    computations: dict
    alone_seconds: float
    methods: dict
    estimates: dict
    links: dict
    measured_workers: int

    def links_of(self, workers):
        """Links between another number of workers than was measured."""
        if self.measured_workers == 1:
            return self.links
        return with_more_workers(self.links, self.measured_workers, workers)

    def computation(self, per_replica_batch_size):
        """`planner.Computation` with any number of samples of a worker."""
        return interpolated(self.computations, per_replica_batch_size)


def measure(model, workers, links, world_sizes, options):
    """Takes the times of a model, of exchanges and of links. Leaves the model as it is.

    Args:
        model: Keras model, compiled.
        workers: `Links` or `Alone`.
        links: dictionary of `planner.Link`, or None: they are measured.
        world_sizes: list of numbers of workers to plan for, each at least 2.
        options: has `per_replica_batch_size`, beside which other numbers are measured, except of a
            model that takes batches of one size only; `target_density`, `sync_period` and
            `unknown_size`.

    Returns:
        `Measurements`.
    """
    measured_workers = 1 if links else workers.world_size
    links = links or workers.measure()
    step = ModelInStep(model, options.unknown_size)
    try:
        size = options.per_replica_batch_size
        others = max(1, size // 4), max(1, size // 2), 2 * size
        batch_sizes = step.fixed_batch_sizes or {size, *others}
        computations = {n: step.measure(n, workers) for n in sorted(batch_sizes)}
        size = size if size in batch_sizes else min(batch_sizes)
        alone_seconds = computations[size].seconds
        if workers.world_size > 1:
            alone_seconds = alone_seconds_of(step, size, workers)
        specs = step.specs()
    finally:
        step.restore()
    sizes = [spec.size for spec in specs]
    workers.wait_for_all()
    block_seconds = measure_block(sum(sizes))
    methods, estimates = {}, {}
    for world_size in world_sizes:
        workers.wait_for_all()
        methods[world_size] = _methods(specs, world_size, block_seconds, options)
        full_precision = methods[world_size][0]
        estimates[world_size] = [
            narrowed("float16, by its bytes", full_precision, 2),
            narrowed("8 bit, by its bytes", full_precision, 1),
        ]
    return Measurements(
        size, sizes, computations, alone_seconds, methods, estimates, links, measured_workers
    )


def alone_seconds_of(step, per_replica_batch_size, workers):
    """What the first worker computes for a step while the others wait, on all workers."""
    first = workers.rank == 0
    seconds = step.measure(per_replica_batch_size, Alone()).seconds if first else 0.0
    return workers.slowest(seconds)[0]


def _methods(specs, world_size, block_seconds, options):
    exchanges = FullPrecision(), OneBit(), Threshold(target_density=options.target_density)
    full_precision, one_bit, threshold = (
        measure_exchange(exchange, specs, world_size) for exchange in exchanges
    )
    of_full, of_one_bit, of_threshold = ({"bucket_bytes": e.bucket_bytes} for e in exchanges)
    period = options.sync_period
    return [
        Method(FULL_PRECISION, full_precision, **of_full),
        Method("1-bit", one_bit, **of_one_bit),
        Method("1-bit, delayed", one_bit, delay=1, **of_one_bit),
        Method("threshold", threshold, **of_threshold),
        Method("threshold, delayed", threshold, delay=1, **of_threshold),
        Method(
            f"blocks of {period}, full precision",
            with_block_work(full_precision, block_seconds),
            sync_period=period,
        ),
        Method(
            f"blocks of {period}, 1-bit",
            with_block_work(one_bit, block_seconds),
            sync_period=period,
        ),
    ]
