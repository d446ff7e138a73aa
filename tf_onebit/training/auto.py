"""What `Auto` becomes, for the gradients of a model and the workers of a job."""

import inspect
import json
import logging

import numpy as np
import tensorflow as tf

from tf_onebit.configurable import class_path, deserialize, import_class, serialize
from tf_onebit.exchanges import FullPrecision, GradientSpec, OneBit, Threshold
from tf_onebit.exchanges.auto import innermost
from tf_onebit.exchanges.base import FLOAT_BYTES, all_reduce_bytes
from tf_onebit.layout import WORD_BYTES
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
    full, compressed = FullPrecision(), _alone(auto.compressed)
    with engine.place(0):
        work = links.slowest(*(_work_seconds(e, links.world_size) for e in (full, compressed)))
    shares = bucket_shares(specs, auto.bucket_bytes)
    seconds = [
        [
            work_seconds * spec.size
            + sending_seconds(exchange, spec, rates, links.world_size, share)
            for spec, share in zip(specs, shares, strict=True)
        ]
        for exchange, work_seconds in zip((full, compressed), work, strict=True)
    ]
    totals = [f"{1e3 * sum(of_all):.3g} ms" for of_all in seconds]
    reason = f"all take {totals[0]} in full precision and {totals[1]} compressed, without overlap"
    return _decided(auto, specs, paying(specs, *seconds), reason, engine)


def bucket_shares(specs, bucket_bytes):
    """What part of its bucket each gradient is, as if all were as full as they may be: list.

    Args:
        specs: list of `GradientSpec`.
        bucket_bytes: of the exchange.
    """
    dense = sum(spec.size for spec in specs if not spec.sparse)
    bucket = max(1, min(dense, bucket_bytes / FLOAT_BYTES))
    return [1.0 if spec.sparse else min(1.0, spec.size / bucket) for spec in specs]


def paying(specs, full_seconds, compressed_seconds):
    """The names of the gradients that it pays to compress: list.

    Args:
        specs: list of `GradientSpec`.
        full_seconds, compressed_seconds: lists of what the exchange of each takes.
    """
    return [
        spec.name
        for spec, full, compressed in zip(specs, full_seconds, compressed_seconds, strict=True)
        if _LEAST_GAIN * compressed < full and not spec.sparse
    ]


def sending_seconds(exchange, spec, links, world_size, bucket_share):
    """What the messages of a gradient take, with its part of what its bucket takes of latency.

    Args:
        exchange: `FullPrecision`, `OneBit` or `Threshold`.
        spec: `GradientSpec`.
        links: dictionary of `planner.Link`.
        world_size: number of workers.
        bucket_share: what part of its bucket the gradient is.
    """
    others = world_size - 1
    if isinstance(exchange, OneBit):
        layout = exchange.layout_of([spec], world_size)
        sent = {
            "all_to_all": others * layout.worker_message_bytes,
            "all_gather": others * layout.shard_message_bytes,
        }
    elif isinstance(exchange, Threshold):
        sent = {"all_gather": others * WORD_BYTES * exchange.expected_density * spec.size}
    else:
        size_bytes = tf.as_dtype(spec.dtype).size * spec.size
        sent = {"all_reduce": all_reduce_bytes(size_bytes, world_size)}
    return sum(
        bucket_share * links[kind].latency_seconds + count / links[kind].bytes_per_second
        for kind, count in sent.items()
    )


def with_decision(state, exchange):
    """The state of what is built of an exchange that was decided for."""
    description = json.dumps(serialize(exchange)).encode()
    return state | {_DECISION: np.frombuffer(description, np.uint8)}


def without_decision(state):
    """The state itself, of what `with_decision` returned."""
    return {name: array for name, array in state.items() if name != _DECISION}


def _alone(exchange):
    """What encodes and decodes within an exchange: without a start, a delay, transforms."""
    description = innermost(exchange)
    config = description["config"] | {"exclude": []}
    if description["class"] == class_path(OneBit):
        config |= {"transforms": [], "local_transforms": []}
    return deserialize(description | {"config": config})


def _work_seconds(exchange, world_size):
    """Of encoding and decoding, per value."""
    buckets = measure_exchange(exchange, [_SAMPLE], world_size)
    return sum(bucket.all_work_seconds for bucket in buckets) / _SAMPLE.size


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
