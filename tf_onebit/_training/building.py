"""Construction of the exchange of a list of gradients, after a comparison of the workers."""

from typing import Literal, TypeAlias

import tensorflow as tf

from tf_onebit.exchanges import Auto, Bucketed, FullPrecision
from tf_onebit.exchanges.arguments import Moments
from tf_onebit.exchanges.hierarchical import Hierarchical
from tf_onebit.exchanges.schedule import AnyExchange, innermost, is_exchange, with_innermost

# What users pass as `exchange`.
RequestedExchange: TypeAlias = AnyExchange | Literal["auto"] | None


def resolve_exchange(exchange: RequestedExchange) -> AnyExchange:
    """Returns the exchange that a user asked for: `FullPrecision` for None, `Auto` for "auto".

    Raises:
        ValueError: if the argument is neither of these nor an exchange.
    """
    if exchange is None:
        return FullPrecision()
    if isinstance(exchange, str) and exchange == "auto":
        return Auto()
    if not is_exchange(exchange):
        raise ValueError(
            'exchange must be a tf_onebit.Exchange, for example tf_onebit.OneBit(), or "auto". '
            f"Received: exchange={exchange!r} of type {type(exchange).__name__}."
        )
    return exchange


def with_moments(exchange: AnyExchange, moments: Moments) -> AnyExchange:
    """Returns the same exchange with an argument `moments`, if it has one."""
    inner = innermost(exchange)
    config = inner.get_config()
    # Once built, an exchange takes None for "after".
    if "moments" not in config or (config["moments"] or "after") == moments:
        return exchange
    return with_innermost(exchange, inner.from_config(config | {"moments": moments}))


def require_no_local_moments(exchange: AnyExchange, reason: str) -> None:
    """Raises ValueError if an exchange is for moments of each worker's own gradients.

    Args:
        exchange: the user's exchange.
        reason: why there cannot be any: a sentence.
    """
    if innermost(exchange).moments == "local":
        raise ValueError(
            f"{reason} Received: moments='local' in exchange={exchange!r}. Pass moments='after'."
        )


def build(template, specs, scope, engine, unit=1.0, takes_updates=False, job=None):
    """Builds clones of `template`, after a check that all workers agree.

    Args:
        template: the user's exchange.
        specs: list of `GradientSpec`.
        scope: prefix of the collectives' names.
        engine: `Engine`. If it has a `node`, the workers of a node share the exchange.
        unit: see `Exchange.build`.
        takes_updates: see `Bucketed`.
        job: `Engine` of all workers that have to agree. Default: `engine`.

    Returns:
        List of `Bucketed`, one for each of `engine.ranks`.

    Raises:
        ValueError: on all workers, if they are about to build different exchanges.
    """
    job = job or engine
    if engine.node is None:
        exchanges = [Bucketed(template, takes_updates) for _ in engine.ranks]
    else:
        (place,), per_node = engine.node.ranks, engine.node.world_size
        exchanges = [Hierarchical(template, takes_updates, place, per_node)]
    with tf.init_scope():
        # The comparison comes first: workers with different models may not even get to build.
        job.run([exchange.handshake(specs, job.world_size, scope) for exchange in exchanges])
        for index, (rank, exchange) in enumerate(zip(engine.ranks, exchanges, strict=True)):
            with engine.place(index):
                exchange.build(specs, rank, engine.world_size, scope, unit)
    return exchanges
