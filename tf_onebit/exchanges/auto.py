"""Auto: compresses what it pays to compress."""

import re

from tf_onebit.configurable import deserialize, serialize
from tf_onebit.exchanges.one_bit import OneBit
from tf_onebit.exchanges.schedule import Recipe, innermost, is_exchange, with_innermost


class Auto(Recipe):
    """Decides, before the first step, which gradients are compressed: `exchange="auto"`.

    Then workers measure, for some seconds, what collectives take between them and what encoding and
    decoding take on them. A gradient is compressed if that makes its exchange faster by a tenth
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

    argument = "compressed"

    def __init__(self, compressed=None):
        compressed = OneBit() if compressed is None else deserialize(compressed)
        if not is_exchange(compressed) or "exclude" not in innermost(compressed).get_config():
            raise ValueError(
                "Auto needs an exchange that compresses, and takes exclude=: OneBit, Threshold or "
                "one of your own, or one around them: Auto(OneBit()). "
                f"Received: compressed={compressed!r}."
            )
        super().__init__(compressed)

    def get_config(self):
        return {"compressed": serialize(self.inner)}

    def schedule(self):
        raise ValueError(
            "Auto decides about a whole model, before its exchange is built. Received: Auto within "
            "another exchange or a compressor. Put it around: Auto(WarmStart(Delayed(OneBit()), "
            "steps=1000))."
        )

    def uncompressed(self):
        return self.inner.uncompressed()

    def excluding(self, names):
        """Returns the exchange that compresses all but the gradients with these names.

        Args:
            names: list of strings, or None for all there are.
        """
        exchange = innermost(self.inner)
        patterns = [".*"] if names is None else [f"^{re.escape(name)}$" for name in names]
        config = exchange.get_config()
        config["exclude"] = [*config["exclude"], *patterns]
        return with_innermost(self.inner, exchange.from_config(config))
