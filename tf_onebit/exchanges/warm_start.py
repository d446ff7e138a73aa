"""WarmStart: full precision in the first steps."""

import dataclasses
from typing import Any

from tf_onebit._configurable import deserialize, serialize
from tf_onebit._validation import number_of_samples
from tf_onebit.exchanges.schedule import (
    AnyExchange,
    Recipe,
    Schedule,
    WarmUp,
    is_exchange,
    schedule_of,
)


class WarmStart(Recipe):
    """Full precision at first, then the exchange `exchange`.

    The gradients of an untrained model are uneven and change quickly. Seide et al. 2014 (section
    5.2) train the first 24 hours of 309 without quantization. Transforms of the exchange work
    from the first step on.

    A good length is about a tenth of the job's steps, and no more than a part of the first epoch.
    A `fit` that ends within the warm start has compressed nothing. Worker 0 then warns once.

    Args:
        exchange: the exchange that follows.
        steps: number of exchanges in full precision.
        samples: instead of `steps`: number of samples in full precision. The first exchange that
            begins after that many samples is compressed.
        global_batch_size: with `samples`: number of samples that all workers together take per
            step, until `set_global_batch_size` changes it.

    Raises:
        ValueError: if `steps` is negative or not a whole number, `samples` is given without
            `global_batch_size`, or `exchange` is not an exchange.

    Example:
        >>> from tf_onebit.exchanges import OneBit
        >>> WarmStart(OneBit(), steps=500).steps
        500
        >>> WarmStart(OneBit(), samples=8_640_000, global_batch_size=256).samples
        8640000
    """

    def __init__(
        self,
        exchange: AnyExchange,
        steps: int | None = None,
        samples: int | None = None,
        global_batch_size: int | None = None,
    ) -> None:
        exchange = deserialize(exchange)
        if not is_exchange(exchange):
            raise ValueError(
                "WarmStart needs an exchange, for example WarmStart(OneBit(), steps=500). "
                f"Received: exchange={exchange!r}."
            )
        by_samples = samples is not None
        if (steps is not None) == by_samples or (global_batch_size is not None) != by_samples:
            raise ValueError(
                "WarmStart needs a number of steps, or one of samples and a global_batch_size. "
                f"Received: steps={steps}, samples={samples}, "
                f"global_batch_size={global_batch_size}. Use WarmStart(exchange, steps=500) or "
                "WarmStart(exchange, samples=128_000, global_batch_size=256)."
            )
        if steps is not None and (steps < 0 or steps != int(steps)):
            raise ValueError(
                f"steps must be a whole number of exchanges, at least 0. Received: steps={steps}."
            )
        if isinstance(exchange, WarmStart):
            raise ValueError(
                "WarmStart cannot contain another WarmStart. Received: WarmStart within "
                "WarmStart. Use one, with the length of both together."
            )
        super().__init__(exchange)
        self.steps = steps if steps is None else int(steps)
        self.samples = self.global_batch_size = None
        if samples is not None and global_batch_size is not None:
            self.samples = number_of_samples("samples", samples)
            self.global_batch_size = number_of_samples("global_batch_size", global_batch_size)

    def get_config(self) -> dict[str, Any]:
        return {
            "exchange": serialize(self.inner),
            "steps": self.steps,
            "samples": self.samples,
            "global_batch_size": self.global_batch_size,
        }

    def schedule(self) -> Schedule:
        if self.samples is not None and self.global_batch_size is not None:
            warm_up = WarmUp(self.samples, "samples", self.global_batch_size)
        else:
            warm_up = WarmUp(self.steps, "steps")  # type: ignore[arg-type]  # there are steps
        return dataclasses.replace(schedule_of(self.inner), warm_up=warm_up)
