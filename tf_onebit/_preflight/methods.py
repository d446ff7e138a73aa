"""Methods of exchange between a number of workers, with their measured work and messages."""

import dataclasses
import functools

from tf_onebit._measurement import measure_exchange, with_world_size
from tf_onebit._training.building import with_moments
from tf_onebit._training.local_updates import expected_moments_of
from tf_onebit._training.model_optimizers import inner_optimizer
from tf_onebit.exchanges import FullPrecision, OneBit, Threshold
from tf_onebit.exchanges.schedule import innermost
from tf_onebit.planner import Method

FULL_PRECISION = "full precision"
_RUNS_OF_OTHERS = 1


class Candidates:
    """Exchanges to plan with: ours, ordered by how much they change training, and the user's own.

    Args:
        optimizer: Keras optimizer of the model.
        target_density: of threshold-sparse updates.

    Attributes:
        exchanges: dictionary of exchanges by name.
        in_steps: list of the same exchanges with the moments that they have in steps, but not in
            blocks.
    """

    def __init__(self, optimizer, target_density):
        optimizer = inner_optimizer(optimizer)
        self.exchanges = _exchanges(optimizer, target_density)
        self.in_steps = [
            with_moments(exchange, expected_moments_of(optimizer, exchange))
            for exchange in self.exchanges.values()
        ]
        self._in_full_precision = _InFullPrecision()

    def measured(self, exchange, *arguments, **runs):
        """Measures an exchange as `measure_exchange` does, those in full precision once."""
        measured = measure_exchange
        if isinstance(exchange, FullPrecision):
            measured = self._in_full_precision
        return measured(exchange, *arguments, **runs)


def _exchanges(optimizer, target_density):
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


def runs_for(world_size, workers, world_sizes):
    """Returns arguments of `measure_exchange`: how often it runs in a plan for a number of workers.

    Coding depends little on the number of workers, so others than the job's get fewer runs.

    Args:
        world_size: the number of workers.
        workers: `Links` or `Alone`.
        world_sizes: list of all numbers of workers of the plan.
    """
    well = world_size in (workers.world_size, world_sizes[0])
    return {} if well else {"runs": _RUNS_OF_OTHERS}


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
        self._buckets = []
        for exchange in candidates.in_steps:
            workers.wait_for_all()  # workers that share a processor share it all the time
            self._buckets.append(self._measured(exchange, specs, rows))

    def _measured(self, exchange, specs, rows=None):
        return self._candidates.measured(exchange, specs, self._world_size, rows, **self._runs)

    def methods(self):
        """Returns the methods that exchange gradients in every step: list of `planner.Method`."""
        methods = []
        exchanges = self._candidates.exchanges
        for (name, exchange), buckets in zip(exchanges.items(), self._buckets, strict=True):
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
        candidates = self._candidates
        of_weights = zip(
            ends, candidates.exchanges.items(), candidates.in_steps, self._buckets, strict=False
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
