"""Decision of `Auto`, for the gradients of a model and the workers of a job."""

import dataclasses
import json
import logging

import numpy as np

from tf_onebit._configurable import as_python, deserialize, serialize
from tf_onebit._formatting import format_number
from tf_onebit._measurement import (
    ExchangeSeconds,
    Links,
    compressed_buckets,
    dense,
    measure_work,
    measured_as,
)
from tf_onebit.exchanges import Exchange, FullPrecision, Recipe
from tf_onebit.exchanges.handshake import describe, handshake
from tf_onebit.exchanges.schedule import innermost
from tf_onebit.planner import pays

_DECISION = "decision"


def decided(auto, specs, scope, workers, states=()):
    """Returns the exchange that `Auto` decides for, or has decided for in an earlier run.

    Args:
        auto: `Auto`.
        specs: list of `GradientSpec`.
        scope: prefix of the names of collectives.
        workers: `TrainingWorkers`.
        states: list of the workers' states in an earlier run, by rank, or an empty list.

    Raises:
        ValueError: on all workers, if they are about to decide about different gradients.
    """
    engine, holders = workers.group, workers.holders
    description = describe(auto, specs, engine.world_size)
    # Compared first: a worker that does something else would not take part in measuring.
    engine.run([handshake(scope, description) for _ in engine.ranks])
    own = [states[holders.ranks[0]]] if len(states) == holders.world_size else []
    for state in (*own, *states):
        if _DECISION in state:
            return deserialize(json.loads(bytes(state[_DECISION])))
    return decide(auto, specs, engine)


def decide(auto, specs, engine):
    """Measures, and decides which gradients are compressed: an `Exchange`, the same on all workers.

    Args:
        auto: `Auto`.
        specs: list of `GradientSpec`.
        engine: `Engine` of the workers that exchange these gradients.
    """
    if innermost(auto).takes_sparse:  # it turns them into dense gradients
        specs = dense(specs)
    decision = _Decision(auto.excluding(None), "all workers are in this process")
    if len(engine.ranks) < engine.world_size:
        decision = _weighed(auto, specs, *_measured(auto, engine))
    if 0 in engine.ranks:
        _logger().info(
            f'tf_onebit: exchange="auto" compresses {decision.compressed:,} of '
            f"{sum(spec.size for spec in specs):,} values, because {decision.reason}. The same "
            f"without measuring: {as_python(serialize(decision.exchange))}."
        )
    return decision.exchange


@dataclasses.dataclass(frozen=True)
class _Decision:
    """Decision: the exchange, the reason in words, and the number of compressed values."""

    exchange: Exchange | Recipe
    reason: str
    compressed: int = 0


def _measured(auto, engine):
    """Returns the `ExchangeSeconds` of the slowest worker, in full precision and compressed."""
    workers = Links(engine)
    links = workers.measure()
    exchanges = FullPrecision(auto.bucket_bytes), _as_measured(innermost(auto))
    with engine.place(0):
        work = [measure_work(exchange, workers.world_size) for exchange in exchanges]
    return [
        ExchangeSeconds(exchange, links, workers.world_size, seconds)
        for exchange, seconds in zip(exchanges, workers.slowest(*work), strict=True)
    ]


def _weighed(auto, specs, full, compressed):
    """Decides by measured times. Returns a `_Decision`.

    Args:
        auto: `Auto`.
        specs: list of `GradientSpec`.
        full, compressed: `ExchangeSeconds`.
    """

    def buckets_of(exchange):
        return compressed_buckets(innermost(exchange), specs)

    def seconds_of(exchange):
        return sum(
            (compressed if is_compressed else full).of_bucket(bucket)
            for is_compressed, bucket in buckets_of(exchange)
        )

    none = auto.excluding(None)
    none_seconds = seconds_of(none)
    in_full_precision = f"{format_number(1e3 * none_seconds)} ms"
    gaining = paying(specs, full, compressed)
    if not gaining:
        return _Decision(
            none,
            "compression does not pay for any gradient: in full precision they take "
            f"{in_full_precision}",
        )
    others = [spec for spec in specs if spec not in gaining]
    # Gradients that stay plain in any case may share messages with compressed ones, or have
    # messages of their own. Both choices are compared.
    left_out = [spec for spec in others if compressed.compresses(spec)]
    # Several gradients may share a name. If one of them gains, all of them are compressed.
    compressed_names = {spec.name for spec in gaining}
    choices = [
        auto.excluding([spec.name for spec in excluded if spec.name not in compressed_names])
        for excluded in (left_out, others)
    ]
    seconds, best = min(((seconds_of(choice), choice) for choice in choices), key=lambda c: c[0])
    reason = (
        f"all dense gradients take {in_full_precision} in full precision, and "
        f"{format_number(1e3 * seconds)} ms if those are compressed for which it pays, without "
        "overlap"
    )
    if not pays(none_seconds, seconds):
        return _Decision(none, reason)
    values = sum(
        spec.size
        for is_compressed, bucket in buckets_of(best)
        for spec in bucket
        if is_compressed and compressed.compresses(spec)
    )
    return _Decision(best, reason, values)


def paying(specs, full, compressed):
    """Returns the gradients whose compression makes their exchange a tenth faster or more: list.

    Args:
        specs: list of `GradientSpec`.
        full, compressed: `ExchangeSeconds`.
    """
    return [
        spec
        for spec in specs
        if not spec.sparse and pays(full.of_gradients([spec]), compressed.of_gradients([spec]))
    ]


def with_decision(state, exchange):
    """Returns the state of built exchanges together with the decision for `exchange`."""
    description = json.dumps(serialize(exchange)).encode()
    return state | {_DECISION: np.frombuffer(description, np.uint8)}


def without_decision(state):
    """Returns the state without the decision: the inverse of `with_decision`."""
    return {name: array for name, array in state.items() if name != _DECISION}


def _as_measured(exchange):
    """Returns the exchange to measure, which excludes no gradients."""
    exchange = measured_as(exchange)
    return exchange.from_config(exchange.get_config() | {"exclude": []})


def _logger():
    """Returns Python's logger "tf_onebit".

    It writes to standard error, unless the program has configured logging.
    """
    logger = logging.getLogger("tf_onebit")
    if not logger.hasHandlers():
        logger.addHandler(logging.StreamHandler())
        logger.setLevel(logging.INFO)
    return logger
