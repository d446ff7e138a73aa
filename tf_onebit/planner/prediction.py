"""Predicted time of a step with a method, and speed-up of several workers."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from tf_onebit.planner.costs import (
    Activations,
    Bucket,
    Computation,
    Link,
    Worker,
    require_positive,
    require_workers,
    within_nodes,
)
from tf_onebit.planner.methods import Method
from tf_onebit.planner.simulation import simulate

_STEPS = 4
# With delayed gradients, long and short steps alternate.
_DELAYED_STEPS = 24


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Result of `predict`.

    Times are per step. The time of a block's end is divided by the number of steps in a block.

    Attributes:
        method: name of the method.
        workers: number of workers.
        step_seconds: time of a step.
        computation_seconds: time of a step without any exchange, and without what it does with
            the weights.
        coding_seconds: time of encoding and decoding.
        sending_seconds: time while messages are under way, also during other work.
        sent_bytes: number of bytes that each worker sends in a step.
        speed_up: samples per second of all workers, divided by samples per second of one alone.
        bottleneck: the longest of the three: "computation", "coding" or "sending".
        members: number of workers that hold one model together.
        waiting_seconds: the part of `sending_seconds` in which members wait for activations.
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
    members: int = 1
    waiting_seconds: float = 0.0

    @property
    def groups(self) -> int:
        """Number of groups, each of which holds one model."""
        return self.workers // self.members

    @property
    def alone_seconds(self) -> float:
        """Time in which one worker alone computes its share of a step's samples."""
        return self.speed_up * self.step_seconds / self.workers


def predict(
    method: Method,
    computation: Computation,
    links: Mapping[str, Link],
    workers: int,
    alone_seconds: float | None = None,
    workers_per_node: int = 1,
    activations: Activations | None = None,
) -> Prediction:
    """Predicts the time of a step.

    Args:
        method: `Method` for this number of workers.
        computation: `Computation` of a step of each worker while the others compute, because they
            may share a processor. With `activations`: of a member of a group.
        links: dictionary: `Link` by kind of collective. With `activations`: see `links_of_groups`.
        workers: number of workers that exchange gradients with each other. These are nodes if a
            node has several workers, and groups if several members hold one model.
        alone_seconds: computation of a step of one worker that shares no processor. Default: the
            same as among others.
        workers_per_node: number of workers that add up their gradients over the link "within node"
            before nodes exchange them. See `within_nodes`.
        activations: `Activations` that the members of a group send each other. `alone_seconds` is
            then needed. It is for a batch of `1 / members` of a group's samples.

    Returns:
        `Prediction`.

    Raises:
        ValueError: without workers or computation, and for a kind of collective that `links` does
            not have; for groups without `alone_seconds`.

    Example:
        >>> from tf_onebit.planner import Activations, Bucket, Collective, Computation, Link, Method
        >>> from tf_onebit.planner import links_of_groups, predict
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

        Two groups of two members, which wait for two messages of 0.1 MB:

        >>> message = (Collective(0.0, "all_gather within group", 1e5),)
        >>> pair = Activations(2, forward=message, backward=message)
        >>> links = links_of_groups(links, within=links)
        >>> result = predict(method, Computation(0.01, 0.02), links, 2, 0.03, activations=pair)
        >>> result.groups, result.members, round(result.speed_up, 2)
        (2, 2, 3.19)
    """
    require_workers(workers)
    activations = activations or Activations()
    if activations.members > 1 and alone_seconds is None:
        raise ValueError(
            "The speed-up of groups is relative to a worker that holds the whole model. Received: "
            "alone_seconds=None. Pass the seconds of its step."
        )
    computing = computation.seconds
    alone = computing if alone_seconds is None else alone_seconds
    require_positive("computation.seconds", computing)
    require_positive("alone_seconds", alone)
    total = workers * workers_per_node * activations.members
    if total == 1:
        return Prediction(method.name, 1, alone, alone, 0.0, 0.0, 0.0, 1.0, "computation")
    buckets = empty = [Bucket(bucket.size, ()) for bucket in method.buckets]
    if workers > 1:  # else nothing leaves the node or group
        buckets = method.buckets
    # A node counts as one worker of training in blocks, and its workers exchange in every step.
    period = method.sync_period
    per_step = buckets if period is None else empty
    if workers_per_node != 1:
        per_step = within_nodes(per_step, workers_per_node)
    coding = sum(bucket.all_work_seconds for bucket in per_step)
    if method.adds and period is None and workers > 1:
        # Weights change when the messages of all buckets are there.
        adding = sum(bucket.work_seconds for bucket in per_step)
        per_step = [dataclasses.replace(bucket, work_seconds=0.0) for bucket in per_step]
        computing = computation.with_local_update(0.0).seconds
        computation = computation.with_local_update(adding)
    worker = Worker(computation, links, activations)
    steps = _DELAYED_STEPS if method.delay else _STEPS
    run = simulate([(worker, workers)], per_step, steps, method.delay)
    seconds = float(run.step_seconds[-(steps // 2) :].mean())
    sending = float(run.link_seconds[0])
    sent_bytes = activations.sent_bytes + sum(bucket.sent_bytes for bucket in per_step)
    if period is not None:
        # At the end of a block all buckets are ready at once, and there is nothing else to compute.
        run = simulate([(Worker(Computation(0.0, 0.0), links), workers)], buckets, 2)
        block_end = _block_end_seconds(method, buckets, links, run.mean_step_seconds, seconds)
        seconds += block_end / period
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
        activations.members,
        sum(links[c.kind].seconds(c.sent_bytes) for c in activations.messages),
    )


def _block_end_seconds(
    method: Method,
    buckets: Sequence[Bucket],
    links: Mapping[str, Link],
    whole_seconds: float,
    step_seconds: float,
) -> float:
    """Returns the time by which all exchanges of a block lengthen it.

    Args:
        method: `Method` with blocks.
        buckets: list of `Bucket` of a block.
        links: dictionary: `Link` by kind of collective.
        whole_seconds: time to exchange the whole model while workers wait.
        step_seconds: time of a step without exchange.
    """
    waits = [sum(links[c.kind].seconds(0.0) for c in b.collectives) for b in buckets]
    # A small fragment takes as many collectives as a large one.
    turns = [max(part * whole_seconds, *waits, 0.0) for part in method.fragments]
    if not method.overlap:
        return sum(turns)
    work = sum(bucket.all_work_seconds for bucket in buckets)
    for collective in itertools.chain(*(bucket.collectives for bucket in buckets)):
        work += links[collective.kind].all_work_seconds(collective.sent_bytes)
    # Each fragment must arrive in time, and all of them before a block has passed.
    hidden = method.overlap * step_seconds
    pairs = zip(method.fragments, turns, strict=True)
    late = sum(max(part * work, seconds - hidden) for part, seconds in pairs)
    return max(late, sum(turns) - (method.sync_period or 0) * step_seconds)


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
