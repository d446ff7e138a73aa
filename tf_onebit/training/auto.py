"""What `Auto` becomes, for the gradients of a model and the workers of a job."""

import json
import logging

import numpy as np
import tensorflow as tf

from tf_onebit.configurable import class_path, deserialize, serialize
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
        states: list of the workers' states in an earlier run, whose decision is kept.

    Returns:
        An `Exchange`.
    """
    for state in states:
        if _DECISION in state:
            return deserialize(json.loads(bytes(state[_DECISION])))
    if len(engine.ranks) == engine.world_size:
        return _decided(auto, specs, set(), "all workers are in this process", engine)
    links = Links(engine)
    rates = links.measure()
    with engine.place(0):
        full, compressed = links.slowest(
            *(
                _seconds_per_value(exchange, rates, links.world_size)
                for exchange in (FullPrecision(), _alone(auto.compressed))
            )
        )
    # Values of 16 bits take half as long to send, and as long to encode.
    pays = {
        spec.name
        for spec in specs
        if _LEAST_GAIN * compressed < full * tf.as_dtype(spec.dtype).size / tf.float32.size
    }
    reason = (
        f"the exchange of a value takes {1e9 * full:.2g} ns in full precision and "
        f"{1e9 * compressed:.2g} ns compressed, without overlap"
    )
    return _decided(auto, specs, pays, reason, engine)


def with_decision(state, exchange):
    """The state of what is built of an exchange that was decided for."""
    description = json.dumps(serialize(exchange)).encode()
    return state | {_DECISION: np.frombuffer(description, np.uint8)}


def without_decision(state):
    return {name: array for name, array in state.items() if name != _DECISION}


def _alone(exchange):
    """What encodes and decodes within an exchange: without a start, a delay or transforms."""
    description = innermost(exchange)
    if description["class"] != class_path(OneBit):
        return deserialize(description)
    config = description["config"] | {"transforms": [], "local_transforms": []}
    return OneBit.from_config(config)


def _seconds_per_value(exchange, rates, world_size):
    """Of encoding and decoding, and of messages so long that their latency does not count."""
    buckets = measure_exchange(exchange, [_SAMPLE], world_size)
    sending = sum(
        collective.sent_bytes / rates[collective.kind].bytes_per_second
        for bucket in buckets
        for collective in bucket.collectives
    )
    return (sum(bucket.all_work_seconds for bucket in buckets) + sending) / _SAMPLE.size


def _decided(auto, specs, pays, reason, engine):
    excluded = [spec.name for spec in specs if spec.name not in pays]
    exchange = auto.excluding(excluded)
    inner = innermost(exchange)
    name = inner["class"].rpartition(":")[2]
    values = sum(spec.size for spec in specs)
    compressed = sum(spec.size for spec in specs if spec.name in pays)
    if 0 in engine.ranks:
        _logger().info(
            f'tf_onebit: exchange="auto": {name} for {compressed:,} of {values:,} values, because '
            f"{reason}. The same without measuring: {name}(exclude={inner['config']['exclude']})."
        )
    return exchange


def _logger():
    """Python's logger "tf_onebit", which writes to standard error unless a program has its own."""
    logger = logging.getLogger("tf_onebit")
    if not logger.hasHandlers():
        logger.addHandler(logging.StreamHandler())
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    return logger
