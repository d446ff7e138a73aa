"""Stages: the three stages of an exchange, with the flags of its messages."""

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import tensorflow as tf

from tf_onebit.collectives.requests import AllGather, Exchanging
from tf_onebit.exchanges.gradients import Gradient, GradientSpec, not_finite_flag, with_overflow

FLAG_BYTES = 4

# Exchanged gradients, with the flags of all workers if messages carry them.
Delivered: TypeAlias = list[Gradient] | tuple[list[Gradient], tf.Tensor]


class StagedExchange(Protocol):
    """Role of an `Exchange`, whose module imports this one."""

    carries_flags: bool
    specs: tuple[GradientSpec, ...]
    world_size: int
    scope: str

    def build(
        self, specs: Sequence[GradientSpec], rank: int, world_size: int, scope: str
    ) -> None: ...

    def encode(self, gradients: Sequence[Gradient]) -> Sequence[tf.Tensor]: ...

    def aggregate(self, message: Sequence[tf.Tensor]) -> Exchanging[Sequence[tf.Tensor]]: ...

    def deliver(
        self, message: Sequence[tf.Tensor], like: Sequence[Gradient], scale: float
    ) -> Exchanging[Delivered]: ...


class Stages:
    """Runner of the stages of exchanges.

    If the messages of an exchange carry no flags, it sends a flag beside each message. A subclass
    also records the times of stages.
    """

    def encode(
        self, exchange: StagedExchange, gradients: Sequence[Gradient]
    ) -> Sequence[tf.Tensor]:
        """Returns the message of this worker: list of tensors."""
        message = exchange.encode(gradients)
        return message if exchange.carries_flags else [not_finite_flag(gradients), *message]

    def aggregate(
        self, exchange: StagedExchange, message: Sequence[tf.Tensor]
    ) -> Exchanging[Sequence[tf.Tensor]]:
        """Generator: returns the message for `deliver`: list of tensors."""
        if exchange.carries_flags:
            return (yield from exchange.aggregate(message))
        flag, *message = message
        message = yield from exchange.aggregate(message)
        return [flag, *message]

    def deliver(
        self,
        exchange: StagedExchange,
        message: Sequence[tf.Tensor],
        like: Sequence[Gradient],
        scale: float,
        decodes: bool = True,
    ) -> Exchanging[tuple[list[Gradient], tf.Tensor]]:
        """Generator: returns the exchanged gradients, and the flags of all workers.

        Without `decodes` it returns what an `Adding` exchange gathers, in place of gradients.
        """
        if not decodes:
            return (yield from exchange.gather(message))  # type: ignore[attr-defined]  # `Adding`
        if exchange.carries_flags:
            # With flags these are pairs.
            return (yield from exchange.deliver(message, like, scale))  # type: ignore[return-value]
        flag, *message = message
        flags = yield AllGather(flag[tf.newaxis], f"{exchange.scope}/flags")
        gradients = yield from exchange.deliver(message, like, scale)
        return gradients, with_overflow(flags, gradients)  # type: ignore[return-value]  # no pairs

    def hold(self, message: Sequence[tf.Tensor]) -> None:
        """Notes that a step returns no gradients, and keeps a message: list of tensors."""


def run_stages(
    exchange: StagedExchange,
    gradients: Sequence[Gradient],
    scale: float = 1.0,
    stages: Stages | None = None,
    decodes: bool = True,
) -> Exchanging[tuple[list[Gradient], tf.Tensor]]:
    """Generator: runs the stages of an exchange one after another.

    Args:
        exchange: `Exchange`, built.
        gradients: list of tensors, as in `exchange.specs`. Sums or means over the local minibatch.
        scale: factor on the sum: `1 / world_size` for the mean over the workers.
        stages: `Stages`.
        decodes: see `Stages.deliver`.

    Returns:
        A list of tensors with the shapes and dtypes of `gradients`, the same on all workers, and
        the flags, int32 `[world_size]`. Flag k is 0 if all gradients of rank k are finite.
        Otherwise it is 1 + the index of the first gradient that is not.
    """
    stages = stages or Stages()
    message = stages.encode(exchange, gradients)
    message = yield from stages.aggregate(exchange, message)
    return (yield from stages.deliver(exchange, message, gradients, scale, decodes))


def flag_bytes(exchange: StagedExchange) -> int:
    """Returns the bytes that a worker sends for flags beside the messages of an exchange."""
    return 0 if exchange.carries_flags else (exchange.world_size - 1) * FLAG_BYTES
