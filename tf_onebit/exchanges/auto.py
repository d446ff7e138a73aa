"""Auto: compresses the gradients whose exchange becomes faster."""

import re
from collections.abc import Iterable
from typing import Any, NoReturn

from tf_onebit._configurable import deserialize, serialize
from tf_onebit.exchanges.one_bit import OneBit
from tf_onebit.exchanges.schedule import (
    AnyExchange,
    Recipe,
    innermost,
    is_exchange,
    with_innermost,
)


class Auto(Recipe):
    """Exchange that decides before the first step which gradients to compress.

    `exchange="auto"` means `Auto()`. Before the first step, workers measure for some seconds how
    long collectives between them take, and how long encoding and decoding take. A gradient is
    compressed if that makes its exchange faster by at least a tenth. This estimate uses its type,
    its shape and the bytes that follow from these, without overlap. No gradient is compressed if
    the exchange of all dense gradients, with each bucket's latency, gains less than a tenth.

    The other gradients travel in full precision, as if `compressed` had them in `exclude`.
    Python's logger "tf_onebit" logs the decision, as the exchange that does the same without
    measuring. A run that is resumed from a backup keeps the decision. Another run may decide
    differently, and then computes different bits. If all workers are in one process, they send
    nothing, and do not compress.

    With momentum, Adam and the like, workers exchange updates as `compressed` would, also where
    they decide to compress nothing. `Auto(OneBit(moments="after"))` then trains as full precision
    does: see `Exchange`.

    `tf-onebit plan` also knows what a model computes, and compares more methods.

    Args:
        compressed: the exchange of the gradients that are compressed. Default: `OneBit()`.

    Raises:
        ValueError: if `compressed` compresses nothing.

    Example:
        >>> from tf_onebit.exchanges import OneBit, WarmStart
        >>> exchange = Auto(WarmStart(OneBit(), steps=1000))
        >>> exchange.excluding(["dense/kernel"]).exclude
        ('^dense/kernel$',)
    """

    argument = "compressed"

    def __init__(self, compressed: AnyExchange | None = None) -> None:
        compressed = OneBit() if compressed is None else deserialize(compressed)
        if not is_exchange(compressed) or "exclude" not in innermost(compressed).get_config():
            raise ValueError(
                "Auto needs an exchange that compresses and takes exclude=, such as OneBit, "
                "Threshold or one of your own. It may be inside of others: "
                f"Auto(Delayed(OneBit())). Received: compressed={compressed!r}."
            )
        super().__init__(compressed)

    def get_config(self) -> dict[str, Any]:
        return {"compressed": serialize(self.inner)}

    def schedule(self) -> NoReturn:
        raise ValueError(
            "Auto decides about a whole model, before its exchange is built. Received: Auto "
            "inside of another exchange or a compressor. Put Auto outside: "
            "Auto(WarmStart(Delayed(OneBit()), steps=1000))."
        )

    def uncompressed(self) -> AnyExchange | None:
        return self.inner.uncompressed()

    def excluding(self, names: Iterable[str] | None) -> AnyExchange:
        """Returns the exchange that compresses all gradients except those with these names.

        Args:
            names: list of strings, or None to exclude all gradients.
        """
        exchange = innermost(self.inner)
        patterns = [".*"] if names is None else [f"^{re.escape(name)}$" for name in names]
        config = exchange.get_config()
        config["exclude"] = [*config["exclude"], *patterns]
        return with_innermost(self.inner, exchange.from_config(config))
