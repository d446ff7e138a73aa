"""What `Auto` becomes, for the gradients of a model and the workers of a job."""

import inspect
import json
import logging

import numpy as np

from tf_onebit.configurable import class_path, deserialize, import_class, serialize
from tf_onebit.exchanges import FullPrecision, OneBit
from tf_onebit.exchanges.auto import innermost
from tf_onebit.measurement import ExchangeSeconds, Links, measure_sample, total_seconds

# So many times as fast an exchange must be for its gradients to be compressed.
_LEAST_GAIN = 1.25
_DECISION = "decision"


def decide(auto, specs, engine, states=()):
    """Decides which gradients are compressed. The same on all workers.

    Args:
        auto: `Auto`.
        specs: list of `GradientSpec`.
        engine: `Engine`, of the workers that exchange these gradients.
        states: list of the workers' states in an earlier run, the own one first: whose decision
            is kept.

    Returns:
        An `Exchange`.
    """
    for state in states:
        if _DECISION in state:
            return deserialize(json.loads(bytes(state[_DECISION])))
    if len(engine.ranks) == engine.world_size:
        reason, excluded, compressed = "all workers are in this process", None, []
    else:
        reason, excluded, compressed = _weighed(auto, specs, *_measured(auto, engine))
    exchange = auto.excluding(excluded)
    if 0 in engine.ranks:
        _logger().info(
            f'tf_onebit: exchange="auto": compresses where it can '
            f"{sum(spec.size for spec in compressed):,} of {sum(spec.size for spec in specs):,} "
            f"values, because {reason}. The same without measuring: "
            f"{as_python(serialize(exchange))}."
        )
    return exchange


def _measured(auto, engine):
    """`ExchangeSeconds` in full precision and compressed, on the slowest worker."""
    workers = Links(engine)
    links = workers.measure()
    exchanges = FullPrecision(auto.bucket_bytes), _alone(auto.compressed, exclude=[])
    with engine.place(0):
        samples = [measure_sample(exchange, workers.world_size) for exchange in exchanges]
    work = workers.slowest(*(seconds for seconds, _ in samples))
    return [
        ExchangeSeconds(exchange, links, workers.world_size, seconds, kinds)
        for exchange, seconds, (_, kinds) in zip(exchanges, work, samples, strict=True)
    ]


def _weighed(auto, specs, full, compressed):
    """What is left out.

    Args:
        auto: `Auto`.
        specs: list of `GradientSpec`.
        full, compressed: `ExchangeSeconds`.

    Returns:
        The reason, in words; names of the gradients that `auto.excluding` leaves out, or None; and
        the list of those that are compressed.
    """

    def seconds_without(names):
        exchange = auto.excluding(names)
        alone = _alone(exchange, exclude=list(exchange.exclude))
        return total_seconds(alone, full, compressed, specs)

    pays = paying(specs, full, compressed)
    others = [spec for spec in specs if spec not in pays]
    # What is plain may share the messages of the others, or have some of its own.
    sharing = [spec for spec in others if not compressed.is_plain(spec)]
    choices = [[spec.name for spec in left_out] for left_out in (sharing, others)]
    excluded = min(choices, key=seconds_without)
    seconds = seconds_without(None), seconds_without(excluded)
    reason = (
        f"all take {1e3 * seconds[0]:.3g} ms in full precision, and {1e3 * seconds[1]:.3g} ms with "
        "what it pays to compress of them, without overlap"
    )
    if not pays or seconds[0] <= _LEAST_GAIN * seconds[1]:
        return reason, None, []
    return reason, excluded, pays


def paying(specs, full, compressed):
    """The gradients that are exchanged faster, by a quarter at least, if they are compressed: list.

    Args:
        specs: list of `GradientSpec`.
        full, compressed: `ExchangeSeconds`.
    """
    return [
        spec
        for spec in specs
        if not spec.sparse and full.of_gradient(spec) > _LEAST_GAIN * compressed.of_gradient(spec)
    ]


def with_decision(state, exchange):
    """The state of what is built of an exchange that was decided for."""
    description = json.dumps(serialize(exchange)).encode()
    return state | {_DECISION: np.frombuffer(description, np.uint8)}


def without_decision(state):
    """The state itself, of what `with_decision` returned."""
    return {name: array for name, array in state.items() if name != _DECISION}


def _alone(exchange, exclude):
    """What encodes and decodes within an exchange: without a start, a delay, transforms."""
    description = innermost(exchange)
    config = description["config"] | {"exclude": exclude}
    if description["class"] == class_path(OneBit):
        config |= {"transforms": [], "local_transforms": []}
    return deserialize(description | {"config": config})


def as_python(value):
    """How a program makes what was serialized: arguments that are not the default's.

    >>> from tf_onebit.exchanges import WarmStart
    >>> as_python(serialize(WarmStart(OneBit(min_size=64, exclude=["a"]), steps=5)))
    "WarmStart(OneBit(min_size=64, exclude=['a']), steps=5)"
    """
    if isinstance(value, list):
        return f"[{', '.join(map(as_python, value))}]"
    if not isinstance(value, dict) or set(value) != {"class", "config"}:
        return repr(value)
    cls = import_class(value["class"])
    parameters = inspect.signature(cls).parameters
    arguments = []
    for name, given in value["config"].items():
        default = parameters[name].default
        if default is inspect.Parameter.empty:
            arguments.append(as_python(given))
        elif given != (list(default) if isinstance(default, tuple) else default):
            arguments.append(f"{name}={as_python(given)}")
    return f"{cls.__name__}({', '.join(arguments)})"


def _logger():
    """Python's logger "tf_onebit", which writes to standard error unless a program has its own."""
    logger = logging.getLogger("tf_onebit")
    if not logger.hasHandlers():
        logger.addHandler(logging.StreamHandler())
        logger.setLevel(logging.INFO)
    return logger
