"""When an exchange runs: `Schedule`, and the recipes that users write it with."""

import dataclasses

from tf_onebit.configurable import Configurable
from tf_onebit.exchanges.base import Exchange


@dataclasses.dataclass(frozen=True)
class WarmUp:
    """How long gradients are exchanged in full precision at first.

    Attributes:
        length: number of steps or samples.
        unit: "steps" or "samples".
        per_exchange: how many of them an exchange adds.
    """

    length: int
    unit: str
    per_exchange: int = 1


@dataclasses.dataclass(frozen=True)
class Schedule:
    """What the recipes around an exchange mean.

    Attributes:
        exchange: `Exchange`, the algorithm.
        warm_up: `WarmUp`, or None.
        delay: number of steps by which gradients come back later, once the warm-up is over.
    """

    exchange: Exchange
    warm_up: WarmUp | None = None
    delay: int = 0


class Recipe(Configurable):
    """Says when the exchange inside it runs. It runs nothing itself.

    A subclass defines `schedule`, which changes that of what is inside.

    Args:
        inner: `Exchange` or `Recipe`.

    Attributes:
        argument: name of the constructor's argument for `inner`.
    """

    argument = "exchange"

    def __init__(self, inner):
        self.inner = inner

    def schedule(self):
        """Returns the `Schedule` that is meant."""
        raise NotImplementedError(f"{type(self).__name__} must define schedule.")

    def uncompressed(self):
        """As `Exchange.uncompressed`, for the same schedule."""
        inner = self.inner.uncompressed()
        return None if inner is None else self.around(inner)

    def around(self, inner):
        """Returns the same recipe for another exchange."""
        return self.from_config(self.get_config() | {self.argument: inner})

    @property
    def bucket_bytes(self):
        """See `Exchange`."""
        return self.inner.bucket_bytes

    @property
    def exclude(self):
        """See `Exchange`."""
        return self.inner.exclude


def schedule_of(exchange):
    """Returns the `Schedule` of an `Exchange` or `Recipe`."""
    return exchange.schedule() if isinstance(exchange, Recipe) else Schedule(exchange)


def innermost(exchange):
    """Returns the `Exchange` within recipes."""
    while isinstance(exchange, Recipe):
        exchange = exchange.inner
    return exchange


def with_innermost(exchange, other):
    """Returns the same recipes around another `Exchange`."""
    if not isinstance(exchange, Recipe):
        return other
    return exchange.around(with_innermost(exchange.inner, other))


def delay_of(exchange):
    """Returns by how many steps the gradients of an `Exchange` or `Recipe` come back later."""
    delay = 0
    while isinstance(exchange, Recipe):
        delay, exchange = delay + getattr(exchange, "delay", 0), exchange.inner
    return delay


def is_exchange(value):
    """Tells whether something is an `Exchange` or `Recipe`."""
    return isinstance(value, Exchange | Recipe)
