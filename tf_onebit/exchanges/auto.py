"""Auto: compresses what it pays to compress."""

import copy
import re

from tf_onebit.configurable import deserialize, import_class, serialize
from tf_onebit.exchanges.base import Exchange
from tf_onebit.exchanges.one_bit import OneBit
from tf_onebit.exchanges.threshold import Threshold


class Auto(Exchange):
    """Decides, before the first step, which gradients are compressed: `exchange="auto"`.

    Then workers measure, for some seconds, what collectives take between them and what encoding and
    decoding take on them. A gradient is compressed if that makes its exchange faster by a quarter
    at least, by its type, its shape and the bytes that follow from these, without overlap; unless
    that of all dense ones, with the latency of each bucket, is made faster by less than that.
    Others travel in full precision, as with the `exclude` of `compressed`. The decision is logged
    by Python's logger "tf_onebit", as the exchange that does the same without measuring. A run that
    is resumed from a backup keeps it; others may come to another, and so to other bits. All workers
    in one process send nothing, and do not compress.

    `tf-onebit plan` knows what a model computes, too, and weighs more methods against each other.

    Args:
        compressed: the exchange of what it pays to compress. Default: `OneBit()`.

    Raises:
        ValueError: for an exchange that compresses nothing.

    Example:
        >>> from tf_onebit.exchanges import OneBit, WarmStart
        >>> exchange = Auto(WarmStart(OneBit(), steps=1000))
        >>> exchange.excluding(["dense/kernel"]).exclude
        ('^dense/kernel$',)
    """

    def __init__(self, compressed=None):
        compressed = OneBit() if compressed is None else deserialize(compressed)
        if not isinstance(compressed, Exchange) or not _compresses(compressed):
            raise ValueError(
                "Auto needs an exchange that compresses, OneBit or Threshold, or one around them: "
                f"Auto(OneBit()). Received: compressed={compressed!r}."
            )
        super().__init__(compressed.bucket_bytes, compressed.exclude)
        self.compressed = compressed
        self.steps_of_delay = compressed.steps_of_delay

    def create_state(self):
        raise ValueError(
            "Auto decides about a whole model, before its exchange is built. Received: Auto within "
            "another exchange or a compressor. Put it around: Auto(WarmStart(Delayed(OneBit()), "
            "steps=1000))."
        )

    def get_config(self):
        return {"compressed": serialize(self.compressed)}

    def in_full_precision(self):
        return self.compressed.in_full_precision()

    def excluding(self, names):
        """The exchange that compresses all but the gradients with these names.

        Args:
            names: list of strings, or None for all there are.
        """
        description = copy.deepcopy(serialize(self.compressed))
        inner = innermost(description)["config"]
        patterns = [".*"] if names is None else [f"^{re.escape(name)}$" for name in names]
        inner["exclude"] = [*inner["exclude"], *patterns]
        return deserialize(description)


def _compresses(exchange):
    return issubclass(import_class(innermost(exchange)["class"]), (OneBit, Threshold))


def innermost(exchange):
    """Of exchanges around an exchange, the description of that: see `configurable.serialize`."""
    description = exchange if isinstance(exchange, dict) else serialize(exchange)
    while "exchange" in description["config"]:
        description = description["config"]["exchange"]
    return description
