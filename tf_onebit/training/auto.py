"""What `Auto` becomes, for the gradients of a model and the workers of a job."""

import inspect
import json
import logging

import numpy as np
import tensorflow as tf

from tf_onebit.configurable import class_path, deserialize, import_class, serialize
from tf_onebit.exchanges import FullPrecision, GradientSpec, OneBit
from tf_onebit.exchanges.auto import innermost
from tf_onebit.measurement import Links, measure_exchange

# So many times as fast an exchange must be for its gradients to be compressed.
_LEAST_GAIN = 1.25
# What is measured in place of a model: a kernel, [in, out].
_SAMPLE = GradientSpec("sample", (1024, 2048), "float32")
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
        return _decided(auto, specs, [], "all workers are in this process", engine)
    links = Links(engine)
    rates = links.measure()
    with engine.place(0):
        full, compressed = links.slowest(
            *(
                _seconds_per_value(exchange, rates, links.world_size)
                for exchange in (FullPrecision(), _alone(auto.compressed))
            )
        )
    reason = (
        f"the exchange of a value takes {1e9 * full:.2g} ns in full precision and "
        f"{1e9 * compressed:.2g} ns compressed, without overlap"
    )
    return _decided(auto, specs, paying(specs, full, compressed), reason, engine)


def paying(specs, full_seconds, compressed_seconds):
    """The names of the gradients that it pays to compress: list.

    Args:
        specs: list of `GradientSpec`.
        full_seconds, compressed_seconds: what the exchange of a float32 value takes.
    """
    # Values of 16 bits take half as long to send, and as long to encode.
    return [
        spec.name
        for spec in specs
        if _LEAST_GAIN * compressed_seconds
        < full_seconds * tf.as_dtype(spec.dtype).size / tf.float32.size
    ]


def with_decision(state, exchange):
    """The state of what is built of an exchange that was decided for."""
    description = json.dumps(serialize(exchange)).encode()
    return state | {_DECISION: np.frombuffer(description, np.uint8)}


def without_decision(state):
    """The state itself, of what `with_decision` returned."""
    return {name: array for name, array in state.items() if name != _DECISION}


def _alone(exchange):
    """What encodes and decodes all there is: without a start, a delay, transforms, exceptions."""
    description = innermost(exchange)
    changes = {"exclude": []}
    if description["class"] == class_path(OneBit):
        changes |= {"min_size": 0, "transforms": [], "local_transforms": []}
    return deserialize(description | {"config": description["config"] | changes})


def _seconds_per_value(exchange, rates, world_size):
    """Of encoding and decoding, and of messages so long that their latency does not count."""
    buckets = measure_exchange(exchange, [_SAMPLE], world_size)
    sending = sum(
        collective.sent_bytes / rates[collective.kind].bytes_per_second
        for bucket in buckets
        for collective in bucket.collectives
    )
    # A GPU goes on while the host takes times, and encodes faster than messages travel.
    on_gpu = bool(tf.config.list_logical_devices("GPU"))
    work = 0.0 if on_gpu else sum(bucket.all_work_seconds for bucket in buckets)
    return (work + sending) / _SAMPLE.size


def _decided(auto, specs, pays, reason, engine):
    pays = set(pays)
    excluded = [spec.name for spec in specs if spec.name not in pays]
    exchange = auto.excluding(excluded if pays else None)
    compressed = sum(spec.size for spec in specs if spec.name in pays)
    if 0 in engine.ranks:
        _logger().info(
            f'tf_onebit: exchange="auto": compresses where it can {compressed:,} of '
            f"{sum(spec.size for spec in specs):,} values, because {reason}. The same without "
            f"measuring: {as_python(serialize(exchange))}."
        )
    return exchange


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
