"""Everything that a plan is made from."""

import dataclasses

from tf_onebit.exchanges import FullPrecision, OneBit, Threshold
from tf_onebit.measurement import measure_block, measure_exchange, with_block_work
from tf_onebit.planner import Method, interpolated, narrowed, with_more_workers
from tf_onebit.preflight.computation import ModelInStep

FULL_PRECISION = "full precision"


@dataclasses.dataclass(frozen=True)
class Measurements:
    """What was measured of a model on this machine.

    Attributes:
        sizes: number of values of each gradient.
        computations: dictionary: `planner.Computation` by number of samples of a worker.
        methods: dictionary: list of `planner.Method` by number of workers, from the one that
            changes training least.
        estimates: the same, of methods that this package does not have, by the bytes they send.
        links: dictionary: `planner.Link` by kind of collective, between `measured_workers`.
        measured_workers: number of workers that exchanged messages; 1 if links are assumed.
    """

    sizes: list
    computations: dict
    methods: dict
    estimates: dict
    links: dict
    measured_workers: int

    def links_of(self, workers):
        """Links between another number of workers than was measured."""
        return with_more_workers(self.links, max(2, self.measured_workers), workers)

    def computation(self, batch_size):
        return interpolated(self.computations, batch_size)


def measure(model, workers, links, world_sizes, batch_sizes, options):
    """Takes the times of a model, of exchanges and of links. Leaves the model as it is.

    Args:
        model: Keras model, compiled.
        workers: `Links` or `Alone`.
        links: dictionary of `planner.Link`, or None: they are measured.
        world_sizes: list of numbers of workers to plan for, each at least 2.
        batch_sizes: list of numbers of samples of a worker.
        options: has `target_density`, `sync_period`, `unknown_size`.

    Returns:
        `Measurements`.
    """
    links = links or workers.measure()
    step = ModelInStep(model, options.unknown_size)
    try:
        computations = {size: step.measure(size, workers) for size in sorted(batch_sizes)}
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
    return Measurements(sizes, computations, methods, estimates, links, workers.world_size)


def _methods(specs, world_size, block_seconds, options):
    full_precision = measure_exchange(FullPrecision(), specs, world_size)
    one_bit = measure_exchange(OneBit(), specs, world_size)
    threshold = Threshold(target_density=options.target_density)
    threshold = measure_exchange(threshold, specs, world_size)
    period = options.sync_period
    return [
        Method(FULL_PRECISION, full_precision),
        Method("1-bit", one_bit),
        Method("1-bit, delayed", one_bit, delay=1),
        Method("threshold", threshold),
        Method("threshold, delayed", threshold, delay=1),
        Method(
            f"blocks of {period}, 1-bit",
            with_block_work(one_bit, block_seconds),
            sync_period=period,
        ),
        Method(
            f"blocks of {period}, full precision",
            with_block_work(full_precision, block_seconds),
            sync_period=period,
        ),
    ]
