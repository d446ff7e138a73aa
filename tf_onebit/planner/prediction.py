"""Predicted time of a step with a method, and speed-up of several workers."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from tf_onebit.planner.costs import (
    FLOAT_BYTES,
    Bucket,
    Computation,
    Link,
    Worker,
    require_positive,
    require_whole,
    require_workers,
    within_nodes,
)
from tf_onebit.planner.simulation import simulate

_STEPS = 4
# With delayed gradients, long and short steps alternate.
_DELAYED_STEPS = 24


@dataclasses.dataclass(frozen=True)
class Method:
    """Method of exchanging gradients, or weights at the end of blocks.

    Attributes:
        name: name that people read.
        buckets: list of `Bucket` of a step, or of a block.
        delay: number of steps by which gradients come back later (`Delayed`).
        sync_period: number of steps in a block; None if gradients are exchanged in every step.
        bucket_bytes: of the exchange, if it can be chosen, or None.
        template: the exchange that the method stands for. Predictions do not use it.

    Raises:
        ValueError: if the delay, the period or the bytes of buckets are not whole numbers, or are
            too small.
    """

    name: str
    buckets: list[Bucket]
    delay: int = 0
    sync_period: int | None = None
    bucket_bytes: int | None = None
    template: object = None

    def __post_init__(self) -> None:
        require_whole("delay", self.delay, 0)
        for name in ("sync_period", "bucket_bytes"):
            if getattr(self, name) is not None:
                require_whole(name, getattr(self, name), 1)


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Result of `predict`.

    Times are per step. The time of a block's end is divided by the number of steps in a block.

    Attributes:
        method: name of the method.
        workers: number of workers.
        step_seconds: time of a step.
        computation_seconds: time of a step without any exchange.
        coding_seconds: time of encoding and decoding.
        sending_seconds: time while messages are under way, also during other work.
        sent_bytes: number of bytes that each worker sends in a step.
        speed_up: samples per second of all workers, divided by samples per second of one alone.
        bottleneck: the longest of the three: "computation", "coding" or "sending".
    """

    method: str
    workers: int
    step_seconds: float
    computation_seconds: float
    coding_seconds: float
    sending_seconds: float
    sent_bytes: float
    speed_up: float
    bottleneck: str


def predict(
    method: Method,
    computation: Computation,
    links: Mapping[str, Link],
    workers: int,
    alone_seconds: float | None = None,
    workers_per_node: int = 1,
) -> Prediction:
    """Predicts the time of a step.

    Args:
        method: `Method` for this number of workers.
        computation: `Computation` of a step of each worker while the others compute, because they
            may share a processor.
        links: dictionary: `Link` by kind of collective.
        workers: number of workers, or of nodes if these have several workers each.
        alone_seconds: computation of a step of one worker that shares no processor. Default: the
            same as among others.
        workers_per_node: number of workers that add up their gradients over the link "within node"
            before nodes exchange them. See `within_nodes`.

    Returns:
        `Prediction`.

    Raises:
        ValueError: without workers or computation, and for a kind of collective that `links` does
            not have.

    Example:
        >>> from tf_onebit.planner import Bucket, Collective, Computation, Link, Method, predict
        >>> bucket = Bucket(1e6, (Collective(0.001, "all_gather", 125e3),), 0.001)
        >>> method = Method("1-bit", [bucket])
        >>> links = {"all_gather": Link(0.001, 125e6)}
        >>> result = predict(method, Computation(0.01, 0.02), links, workers=2)
        >>> round(result.step_seconds, 4), round(result.speed_up, 2), result.bottleneck
        (0.034, 1.76, 'computation')

        Two hosts have four GPUs each, which exchange messages within a host at 12.5 GB/s:

        >>> links["within node"] = Link(1e-5, 12.5e9)
        >>> result = predict(method, Computation(0.01, 0.02), links, 2, workers_per_node=4)
        >>> result.workers, round(result.speed_up, 2)
        (8, 6.96)
    """
    require_workers(workers)
    computing = computation.seconds
    alone = computing if alone_seconds is None else alone_seconds
    require_positive("computation.seconds", computing)
    require_positive("alone_seconds", alone)
    total = workers * workers_per_node
    if total == 1:
        return Prediction(method.name, 1, alone, alone, 0.0, 0.0, 0.0, 1.0, "computation")
    buckets = empty = [Bucket(bucket.size, ()) for bucket in method.buckets]
    if workers > 1:  # else nothing leaves the node
        buckets = method.buckets
    # A node counts as one worker of training in blocks, and its workers exchange in every step.
    period = method.sync_period
    per_step = buckets if period is None else empty
    if workers_per_node != 1:
        per_step = within_nodes(per_step, workers_per_node)
    worker = Worker(computation, links)
    steps = _DELAYED_STEPS if method.delay else _STEPS
    run = simulate([(worker, workers)], per_step, steps, method.delay)
    seconds = float(run.step_seconds[-(steps // 2) :].mean())
    coding = sum(bucket.all_work_seconds for bucket in per_step)
    sending = float(run.link_seconds[0])
    sent_bytes = sum(bucket.sent_bytes for bucket in per_step)
    if period is not None:
        # At the end of a block all buckets are ready at once, and there is nothing else to compute.
        run = simulate([(Worker(Computation(0.0, 0.0), links), workers)], buckets, 2)
        seconds += run.mean_step_seconds / period
        coding += sum(bucket.all_work_seconds for bucket in buckets) / period
        sending += float(run.link_seconds[0]) / period
        sent_bytes += sum(bucket.sent_bytes for bucket in buckets) / period
    parts = {"computation": computing, "coding": coding, "sending": sending}
    return Prediction(
        method.name,
        total,
        seconds,
        computing,
        coding,
        sending,
        sent_bytes,
        total * alone / seconds,
        max(parts, key=parts.__getitem__),
    )


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


def with_more_workers(links: Mapping[str, Link], measured: int, workers: int) -> dict[str, Link]:
    """Returns the links between another number of workers than in the measurement.

    Each worker keeps its bandwidth. Latency is assumed to grow with the logarithm of the number of
    workers. Measure with more workers to replace this assumption.

    Args:
        links: dictionary of `Link`.
        measured, workers: number of workers in the measurement, and the other number, at least 2.

    Raises:
        ValueError: for fewer than 2 workers.

    Example:
        >>> from tf_onebit.planner import uniform_links, with_more_workers
        >>> links = with_more_workers(uniform_links(125e6, 0.001), measured=2, workers=8)
        >>> links["all_gather"].latency_seconds
        0.003
    """
    require_workers(measured, 2)
    require_workers(workers, 2)
    factor = max(1.0, math.log2(workers) / math.log2(measured))
    return {
        kind: dataclasses.replace(link, latency_seconds=factor * link.latency_seconds)
        for kind, link in links.items()
    }


def uniform_links(bytes_per_second: float, latency_seconds: float) -> dict[str, Link]:
    """Returns links of one rate for all kinds of collectives: dictionary of `Link` without work.

    Raises:
        ValueError: for a rate of 0 or a negative latency.

    Example:
        >>> from tf_onebit.planner import uniform_links
        >>> sorted(uniform_links(bytes_per_second=125e6, latency_seconds=0.001))
        ['all_gather', 'all_reduce', 'all_to_all']
    """
    link = Link(latency_seconds, bytes_per_second)
    return dict.fromkeys(("all_to_all", "all_gather", "all_reduce"), link)


def interpolated(measured: Mapping[int, Computation], per_replica_batch_size: float) -> Computation:
    """Returns the `Computation` of a batch between the measured ones or beyond, on a line.

    Args:
        measured: dictionary: `Computation` by number of samples, at least one.
        per_replica_batch_size: number of samples of a worker.

    Raises:
        ValueError: without measurements, or if the number of samples is not positive.

    Example:
        >>> from tf_onebit.planner import Computation, interpolated
        >>> measured = {32: Computation(0.1, 0.2), 64: Computation(0.3, 0.4)}
        >>> round(interpolated(measured, 48).forward_seconds, 3)
        0.2
    """
    if not measured:
        raise ValueError("A computation has to be measured first. Received: measured={}.")
    require_positive("per_replica_batch_size", per_replica_batch_size)
    sizes = sorted(measured)
    if len(sizes) == 1:
        return measured[sizes[0]]
    above = next(
        (i for i, size in enumerate(sizes) if size >= per_replica_batch_size), len(sizes) - 1
    )
    low, high = sizes[max(0, above - 1)], sizes[max(1, above)]
    share = (per_replica_batch_size - low) / (high - low)
    return Computation(
        *(
            max(0.0, a + share * (b - a))
            for a, b in zip(
                dataclasses.astuple(measured[low]), dataclasses.astuple(measured[high]), strict=True
            )
        )
    )
