"""Methods of exchange between a number of workers, with their measured work and messages."""

import dataclasses

from tf_onebit._measurement import measure_exchange, with_world_size
from tf_onebit._preflight.local_update import adds_to_weights
from tf_onebit._training.building import with_moments
from tf_onebit._training.local_updates import expected_moments_of
from tf_onebit._training.model_optimizers import inner_optimizer
from tf_onebit.exchanges import Exchange, FullPrecision, OneBit, Threshold
from tf_onebit.exchanges.schedule import innermost
from tf_onebit.planner import Method, by_node

_FULL_PRECISION, _ONE_BIT, _THRESHOLD = "full precision", "1-bit", "threshold"
# Those that a plan shows for blocks, too.
_IN_BLOCKS = _FULL_PRECISION, _ONE_BIT
RUNS_OF_OTHERS = 1


@dataclasses.dataclass(frozen=True)
class Candidate:
    """Exchange to plan with.

    Attributes:
        name: name that people read.
        exchange: the exchange, as a program writes it.
        in_steps: the same with the moments that it has in steps, but not in blocks.
        adds: whether it adds what it decodes to the weights in steps, but not in blocks.
    """

    name: str
    exchange: Exchange
    in_steps: Exchange
    adds: bool


class Candidates:
    """Exchanges to plan with: ours, ordered by how much they change training, and the user's own.

    The user's own has its arguments, and takes the place of ours if it is of the same class.

    Args:
        optimizer: Keras optimizer of the model.
        target_density: of threshold-sparse updates, or None for that of the user's own, or the
            default.

    Attributes:
        full_precision: `Candidate`, the first.
    """

    def __init__(self, optimizer, target_density):
        optimizer = inner_optimizer(optimizer)
        self._candidates = [
            Candidate(
                name,
                one,
                with_moments(one, expected_moments_of(optimizer, one)),
                adds_to_weights(one, optimizer),
            )
            for name, one in _exchanges(optimizer, target_density).items()
        ]
        self.full_precision = self._candidates[0]
        self._in_full_precision = _InFullPrecision()

    def __iter__(self):
        return iter(self._candidates)

    def measured(self, exchange, *arguments, **runs):
        """Measures an exchange as `measure_exchange` does, but full precision only once."""
        measured = measure_exchange
        if exchange is self.full_precision.exchange:
            measured = self._in_full_precision
        return measured(exchange, *arguments, **runs)


def _exchanges(optimizer, target_density):
    ours = {
        _FULL_PRECISION: FullPrecision(),
        _ONE_BIT: OneBit(),
        _THRESHOLD: Threshold(target_density=target_density),
    }
    gradient_exchange = getattr(optimizer, "gradient_exchange", None)
    if gradient_exchange is None:
        return ours
    own = innermost(gradient_exchange.template)
    if own.trains_apart:
        return ours
    if isinstance(own, Threshold) and target_density is not None:
        config = own.get_config() | {"tau": None, "target_density": target_density}
        own = own.from_config(config)
    names = {type(one): name for name, one in ours.items()}
    return ours | {names.get(type(own), type(own).__name__): own}


def runs_for(world_size, workers, world_sizes):
    """Returns arguments of `measure_exchange`: how often it runs in a plan for a number of workers.

    Coding depends little on the number of workers, so others than the job's get fewer runs.

    Args:
        world_size: the number of workers.
        workers: `Links` or `Alone`.
        world_sizes: list of all numbers of workers of the plan.
    """
    well = world_size in (workers.world_size, world_sizes[0])
    return {} if well else {"runs": RUNS_OF_OTHERS}


class Exchanges:
    """Measured exchanges between a number of workers, and the methods that use them.

    Args:
        candidates: `Candidates`.
        specs, rows: what `measure_exchange` takes.
        workers: workers of this job.
        world_size: number of workers.
        runs: further arguments of `measure_exchange`.
    """

    def __init__(self, candidates, specs, rows, workers, world_size, **runs):
        self._candidates, self._specs = candidates, specs
        self._world_size, self._runs = world_size, runs
        self._measured = []
        for candidate in candidates:
            workers.wait_for_all()  # workers that share a processor share it all the time
            buckets = self._buckets(candidate.in_steps, specs, rows, adds=candidate.adds)
            self._measured.append((candidate, buckets))

    def _buckets(self, exchange, specs, rows=None, **how):
        how = self._runs | how
        return self._candidates.measured(exchange, specs, self._world_size, rows, **how)

    def methods(self):
        """Returns the methods that exchange gradients in every step: list of `planner.Method`."""
        return [
            method for candidate, buckets in self._measured for method in _both(candidate, buckets)
        ]

    def methods_by_node(self, workers_per_node, work_seconds_per_value):
        """Returns the same methods for nodes whose workers share the exchange: list.

        Each node is one of the workers that exchange.

        Args:
            workers_per_node, work_seconds_per_value: see `planner.by_node`.
        """
        return [
            by_node(
                method,
                workers_per_node,
                work_seconds_per_value,
                candidate.in_steps.moments == "local",
            )
            for candidate, buckets in self._measured
            for method in _both(candidate, buckets)
        ]

    def blocks(self, ends, block_seconds, blocks):
        """Returns the methods that train in blocks: list of `planner.Method`.

        Args:
            ends: what `BlockEnd.by_compression` returned.
            block_seconds: as from `measure_block`.
            blocks: `Blocks`.
        """
        methods = []
        for candidate, buckets in self._measured:
            end = ends[candidate.exchange.compresses] if candidate.name in _IN_BLOCKS else None
            if end is None:
                continue
            # Embeddings send all rows, not only a step's. Blocks add nothing while they decode.
            as_in_steps = candidate.in_steps is candidate.exchange and not candidate.adds
            if end.weights != self._specs or not as_in_steps:
                buckets = self._buckets(candidate.exchange, end.weights)
            of_block = end.buckets(buckets, self._in_full_precision, block_seconds)
            name = f"{blocks.name}, {candidate.name}"
            what = {
                "sync_period": blocks.sync_period,
                "template": candidate.exchange,
                "fragments": end.fragments,
                "overlap": blocks.overlap,
            }
            methods.append(Method(name, of_block, **what))
        return methods

    def _in_full_precision(self, specs):
        return self._buckets(self._candidates.full_precision.exchange, specs)


def _both(candidate, buckets):
    """Returns the methods of a candidate in every step, without and with delay: list."""
    exchange = candidate.exchange
    what = {
        "buckets": buckets,
        "bucket_bytes": exchange.bucket_bytes,
        "adds": candidate.adds,
        "template": exchange,
    }
    methods = [Method(candidate.name, **what)]
    if exchange.compresses and exchange.can_be_delayed:
        methods.append(Method(f"{candidate.name}, delayed", delay=1, **what))
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
