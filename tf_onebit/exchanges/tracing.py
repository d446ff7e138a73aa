"""Shapes of an exchange's messages, from a graph that is traced and never run."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_onebit.collectives import echo
from tf_onebit.collectives.requests import Collective, sent_bytes, tensors_of
from tf_onebit.exchanges.gradients import Gradient, GradientSpec
from tf_onebit.exchanges.stages import StagedExchange, Stages, run_stages


def message_specs(exchange: StagedExchange, aggregated: bool) -> list[tf.TensorSpec]:
    """Returns the types and shapes of a message: list of `tf.TensorSpec`.

    Args:
        exchange: `Exchange`, built.
        aggregated: True for the message that `aggregate` returns, False for `encode`'s message.
    """

    def message_of(*gradients: Gradient) -> Sequence[tf.Tensor]:
        message = Stages().encode(exchange, list(gradients))
        if aggregated:
            message = echo.run(Stages().aggregate(exchange, message), exchange.world_size)
        return message

    return _trace(message_of, exchange.specs).structured_outputs


def expected_bytes(
    exchange: StagedExchange, specs: Sequence[GradientSpec], world_size: int
) -> dict[str, float]:
    """Returns the bytes that each worker sends, by kind of collective.

    Args:
        exchange: `Exchange`, not built.
        specs: list of `GradientSpec`.
        world_size: number of workers.

    Raises:
        ValueError: if the length of a message is not known before it is made.
    """
    exchange.build(specs, 0, world_size, "tf_onebit/tracing")
    total: dict[str, float] = {}

    def add(request: Collective) -> None:
        size_bytes = sum(_known_size(t, exchange) * t.dtype.size for t in tensors_of(request))
        kind, sent = sent_bytes(request, size_bytes, world_size)
        total[kind] = total.get(kind, 0) + sent

    def run(*gradients: Gradient) -> list[tf.Tensor]:
        result = echo.run(run_stages(exchange, list(gradients)), world_size, add)
        return tf.nest.flatten(result, expand_composites=True)

    _trace(run, specs)
    return total


def _trace(function: Callable[..., Sequence[tf.Tensor]], specs: Sequence[GradientSpec]) -> Any:
    gradients = [_tensor_spec(spec) for spec in specs]
    with tf.init_scope():
        return tf.function(function, autograph=False).get_concrete_function(*gradients)


def _tensor_spec(spec: GradientSpec) -> tf.TypeSpec:
    dtype = tf.as_dtype(spec.dtype)
    if spec.sparse:
        return tf.IndexedSlicesSpec(spec.shape, dtype, tf.int64, tf.int64)
    return tf.TensorSpec(spec.shape, dtype)


def _known_size(tensor: tf.Tensor, exchange: StagedExchange) -> int:
    size = tensor.shape.num_elements()
    if size is None:
        raise ValueError(
            f"{type(exchange).__name__} must define expected_bytes, because the length of its "
            f"messages depends on the gradients. Received: a message of shape {tensor.shape}."
        )
    return size
