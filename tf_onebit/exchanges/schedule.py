"""Schedule: when an exchange runs, and the recipes with which users say so."""

import dataclasses
from typing import Self, TypeAlias, TypeGuard

from tf_onebit._configurable import Configurable
from tf_onebit.exchanges.base import Exchange


@dataclasses.dataclass(frozen=True)
class WarmUp:
    """Length of the first phase, in which gradients are exchanged in full precision.

    Attributes:
        length: number of steps or samples.
        unit: "steps" or "samples".
        per_exchange: number of steps or samples per exchange.
    """

    length: int
    unit: str
    per_exchange: int = 1


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Meaning of the recipes around an exchange.

    Attributes:
        exchange: `Exchange`, the algorithm.
        warm_up: `WarmUp`, or None.
        delay: number of steps by which gradients are delayed after the warm-up.
    """

    exchange: Exchange
    warm_up: WarmUp | None = None
    delay: int = 0


class Recipe(Configurable):
    """Wrapper that says when the exchange inside it runs. It runs nothing itself.

    A subclass defines `schedule`, which changes the schedule of `inner`.

    Args:
        inner: `Exchange` or `Recipe`.

    Attributes:
        argument: name of the constructor's argument for `inner`.
        delay: number of steps by which this recipe delays gradients.
    """

    argument = "exchange"
    delay = 0

    def __init__(self, inner: "AnyExchange") -> None:
        self.inner = inner

    def schedule(self) -> Schedule:
        """Returns the `Schedule` that this recipe means."""
        raise NotImplementedError(f"{type(self).__name__} must define schedule.")

    def uncompressed(self) -> "AnyExchange | None":
        """Does the same as `Exchange.uncompressed`, and keeps the schedule."""
        inner = self.inner.uncompressed()
        return None if inner is None else self.around(inner)

    def around(self, inner: "AnyExchange") -> Self:
        """Returns the same recipe for another exchange."""
        return self.from_config(self.get_config() | {self.argument: inner})

    @property
    def bucket_bytes(self) -> int:
        """See `Exchange`."""
        return self.inner.bucket_bytes

    @property
    def exclude(self) -> tuple[str, ...]:
        """See `Exchange`."""
        return self.inner.exclude


# What users pass as an exchange.
AnyExchange: TypeAlias = Exchange | Recipe


def schedule_of(exchange: AnyExchange) -> Schedule:
    """Returns the `Schedule` of an `Exchange` or `Recipe`."""
    return exchange.schedule() if isinstance(exchange, Recipe) else Schedule(exchange)


def innermost(exchange: AnyExchange) -> Exchange:
    """Returns the `Exchange` within recipes."""
    while isinstance(exchange, Recipe):
        exchange = exchange.inner
    return exchange


def with_innermost(exchange: AnyExchange, other: Exchange) -> AnyExchange:
    """Returns the same recipes around another `Exchange`."""
    if not isinstance(exchange, Recipe):
        return other
    return exchange.around(with_innermost(exchange.inner, other))


def delay_of(exchange: AnyExchange) -> int:
    """Returns by how many steps an `Exchange` or `Recipe` delays gradients."""
    delay = 0
    while isinstance(exchange, Recipe):
        delay, exchange = delay + exchange.delay, exchange.inner
    return delay


def is_exchange(value: object) -> TypeGuard[AnyExchange]:
    """Tells whether a value is an `Exchange` or `Recipe`."""
    return isinstance(value, Exchange | Recipe)
