"""Methods of exchanging gradients, and variants of them with other messages or buckets."""

import dataclasses
from collections.abc import Sequence

from tf_onebit.planner.costs import (
    FLOAT_BYTES,
    Bucket,
    require_positive,
    require_whole,
)


@dataclasses.dataclass(frozen=True)
class Method:
    """Method of exchanging gradients, or weights at the end of blocks.

    Attributes:
        name: name that people read.
        buckets: list of `Bucket` of a step, or of a block.
        delay: number of steps by which gradients come back later (`Delayed`).
        sync_period: number of steps in a block; None if gradients are exchanged in every step.
        bucket_bytes: of the exchange, if it can be chosen, or None.
        adds: whether the exchange adds what it decodes to the weights. `Bucket.work_seconds` then
            includes that, and comes when all messages are there. No other update follows.
        template: the exchange that the method stands for. Predictions do not use it.
        fragments: sizes of the parts of the model that are exchanged in turn within a block, as
            fractions of the model.
        overlap: number of steps that are made while a part is exchanged.
        workers_per_node: number of workers that share the exchange of a node: see `by_node`.

    Raises:
        ValueError: if a number of steps or bytes is not a whole number, or is too small. If there
            are fragments or an overlap without blocks.
    """

    name: str
    buckets: list[Bucket]
    delay: int = 0
    sync_period: int | None = None
    bucket_bytes: int | None = None
    adds: bool = False
    template: object = None
    fragments: tuple[float, ...] = (1.0,)
    overlap: int = 0
    workers_per_node: int = 1

    def __post_init__(self) -> None:
        require_whole("delay", self.delay, 0)
        require_whole("overlap", self.overlap, 0)
        if self.takes_turns and self.sync_period is None:
            raise ValueError(
                "Fragments and overlap belong to blocks. Received: sync_period=None with "
                f"fragments={self.fragments} and overlap={self.overlap}. Give the period."
            )
        for name in ("sync_period", "bucket_bytes"):
            if getattr(self, name) is not None:
                require_whole(name, getattr(self, name), 1)

    @property
    def takes_turns(self) -> bool:
        """True if fragments of the model are exchanged in turn, or late."""
        return len(self.fragments) > 1 or self.overlap > 0


def narrowed(
    name: str, full_precision: Method, value_bytes: float, full_bytes: float = FLOAT_BYTES
) -> Method:
    """Returns the `Method` that sends narrower values, and is otherwise full precision.

    Args:
        name: name of the method.
        full_precision: `Method` in full precision.
        value_bytes: number of bytes of a value: 2 for float16, 1 for 8 bits.
        full_bytes: number of bytes of a value in full precision.

    Raises:
        ValueError: if a number of bytes is not positive.

    Example:
        >>> from tf_onebit.planner import Bucket, Collective, Method, narrowed
        >>> full = Method("full precision", [Bucket(1e6, (Collective(0.0, "all_reduce", 4e6),))])
        >>> narrowed("float16", full, 2).buckets[0].sent_bytes
        2000000.0
    """
    require_positive("value_bytes", value_bytes)
    require_positive("full_bytes", full_bytes)
    buckets = [
        dataclasses.replace(
            bucket,
            collectives=tuple(
                dataclasses.replace(c, sent_bytes=c.sent_bytes * value_bytes / full_bytes)
                for c in bucket.collectives
            ),
        )
        for bucket in full_precision.buckets
    ]
    return dataclasses.replace(full_precision, name=name, buckets=buckets)


def regrouped(method: Method, sizes: Sequence[int], bucket_bytes: int) -> Method:
    """Returns the `Method` with buckets of another size.

    Work and bytes are assumed to be proportional to the number of values.

    Args:
        method: `Method`, all of whose buckets are exchanged by the same kinds of collectives.
        sizes: number of values of each gradient, in the order of the model's variables.
        bucket_bytes: see `Exchange`.

    Raises:
        ValueError: if `bucket_bytes` is not a positive whole number.

    Example:
        >>> from tf_onebit.planner import Bucket, Collective, Method, regrouped
        >>> full = Method("full precision", [Bucket(1e6, (Collective(0.0, "all_reduce", 4e6),))])
        >>> [b.sent_bytes for b in regrouped(full, 4 * [250_000], bucket_bytes=2_000_000).buckets]
        [2000000.0, 2000000.0]
    """
    require_whole("bucket_bytes", bucket_bytes, 1)
    total = max(1, sum(bucket.size for bucket in method.buckets))
    largest = max(method.buckets, key=lambda bucket: bucket.size)
    work = sum(bucket.work_seconds for bucket in method.buckets)
    stages = [
        dataclasses.replace(
            collective,
            work_seconds=sum(b.collectives[i].work_seconds for b in method.buckets),
            sent_bytes=sum(b.collectives[i].sent_bytes for b in method.buckets),
        )
        for i, collective in enumerate(largest.collectives)
    ]
    buckets = []
    for size in _bucket_sizes(sizes, bucket_bytes):
        share = size / total
        parts = tuple(
            dataclasses.replace(
                stage,
                work_seconds=share * stage.work_seconds,
                sent_bytes=share * stage.sent_bytes,
            )
            for stage in stages
        )
        buckets.append(Bucket(size, parts, share * work))
    return dataclasses.replace(method, buckets=buckets)


def _bucket_sizes(sizes: Sequence[int], bucket_bytes: int) -> list[int]:
    grouped = [0]
    for size in reversed(sizes):
        if grouped[-1] * FLOAT_BYTES >= bucket_bytes:
            grouped.append(0)
        grouped[-1] += size
    return grouped
