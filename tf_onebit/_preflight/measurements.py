"""Measurements that a plan is made from."""

import dataclasses
from collections.abc import Sequence

from tf_onebit._measurement import measure_block, measure_slices
from tf_onebit._preflight.block_ends import BlockEnd
from tf_onebit._preflight.command import announce
from tf_onebit._preflight.computation import ModelInStep
from tf_onebit._preflight.methods import RUNS_OF_OTHERS, Candidates, Exchanges, runs_for
from tf_onebit._preflight.nodes import NodeLinks, in_order, makes_nodes, require_nodes
from tf_onebit.planner import with_more_workers

_MOST_SECONDS_OF_OTHERS = 1.0


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
        node_links: `NodeLinks`.
        block_seconds: what `measure_block` returned.
        scatter: see `ModelInStep`.
    """

    per_replica_batch_size: int
    sizes: list
    has_sparse: bool
    computations: dict
    alone_seconds: float
    methods: dict
    links: dict
    measured_workers: int
    block_seconds: Sequence[float] = ()
    scatter: dict = dataclasses.field(default_factory=dict)
    node_links: NodeLinks = NodeLinks()

    def links_of(self, workers):
        """Returns the links between another number of workers than was measured."""
        links = self.links
        if self.measured_workers > 1:
            links = with_more_workers(self.links, self.measured_workers, workers)
        return self.node_links.added_to(links, workers)


def measure(model, workers, links, links_within, world_sizes, options):
    """Measures the times of a model, of exchanges and of links, without a change of the model.

    Args:
        model: Keras model, compiled.
        workers: `Links` or `Alone`.
        links: dictionary of `planner.Link`, or None to measure them.
        links_within: the same within a group or node, or None for those of `links`.
        world_sizes: list of numbers of workers to plan for, each at least 2.
        options: object with `per_replica_batch_size`, `target_density`, `unknown_size`,
            `workers_per_node` and `blocks`, a `Blocks`. Half and twice the batch size are measured,
            too, unless the model takes one size only.

    Returns:
        `Measurements`.

    Raises:
        ValueError: for a model that cannot be measured, and without enough memory for a step.
    """
    measured_workers = 1 if links else workers.world_size
    per_node = options.workers_per_node
    require_nodes(per_node, world_sizes)
    node_links = NodeLinks(per_node, links_within)
    if not links:
        announce(workers, f"links between {measured_workers} workers")
        links = workers.measure()
        node_links = node_links.measured(workers)
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
        ends = BlockEnd.by_compression(model, step.optimizer, options.blocks)
    finally:
        step.restore()
    sizes = [spec.size for spec in specs]
    workers.wait_for_all()
    block_seconds = measure_block(sum(sizes))
    slice_seconds = measure_slices(sum(sizes), per_node) if per_node > 1 else ()
    candidates = Candidates(model.optimizer, options.target_density)
    methods = {}
    for world_size in world_sizes:
        announce(workers, f"the exchange between {world_size} workers")
        runs = runs_for(world_size, workers, world_sizes)
        exchanges = Exchanges(candidates, specs, rows, workers, world_size, **runs)
        methods[world_size] = exchanges.methods()
        if makes_nodes(world_size, per_node):
            nodes = world_size // per_node
            between = Exchanges(candidates, specs, rows, workers, nodes, runs=RUNS_OF_OTHERS)
            shared = between.methods_by_node(per_node, slice_seconds)
            methods[world_size] = in_order(methods[world_size], shared)
        methods[world_size] += exchanges.blocks(ends, block_seconds, options.blocks)
    return Measurements(
        size,
        sizes,
        any(spec.sparse for spec in specs),
        computations,
        alone_seconds,
        methods,
        links,
        measured_workers,
        block_seconds,
        step.scatter,
        node_links,
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
