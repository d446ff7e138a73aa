"""Costs of a step: computation, encoding and decoding, messages, links."""

import dataclasses
import math
import numbers
from collections.abc import Iterable, Mapping

FLOAT_BYTES = 4


@dataclasses.dataclass(frozen=True)
class Computation:
    """Times of a worker's computation in a step, without encoding and decoding.

    Attributes:
        forward_seconds: time until the first gradient is begun.
        backward_seconds: time from there until all gradients are computed.
        update_seconds: time to update the weights, once all gradients are exchanged.
        local_update_seconds: time to compute the update of a worker's own gradients. It counts in
            a `Method` that `adds`, in place of `update_seconds`.
    """

    forward_seconds: float
    backward_seconds: float
    update_seconds: float = 0.0
    local_update_seconds: float = 0.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            require_at_least_0(self, field.name, "a time")

    @property
    def seconds(self) -> float:
        """Time of a whole step."""
        return self.forward_seconds + self.backward_seconds + self.update_seconds

    def without_overlap(self) -> "Computation":
        """Returns the `Computation` of a worker that exchanges only once it has all gradients.

        >>> Computation(0.1, 0.2).without_overlap().forward_seconds
        0.30000000000000004
        """
        gradients_seconds = self.forward_seconds + self.backward_seconds
        return dataclasses.replace(self, forward_seconds=gradients_seconds, backward_seconds=0.0)

    def with_local_update(self, adding_seconds: float) -> "Computation":
        """Returns the `Computation` of a worker that exchanges its own updates.

        It computes the update of a weight as soon as it has the gradient.

        Args:
            adding_seconds: time to add what is exchanged to the weights.

        >>> local = Computation(0.1, 0.25, 0.5, 0.25).with_local_update(adding_seconds=0.125)
        >>> local.backward_seconds, local.update_seconds
        (0.5, 0.125)
        """
        backward_seconds = self.backward_seconds + self.local_update_seconds
        return Computation(self.forward_seconds, backward_seconds, adding_seconds)


@dataclasses.dataclass(frozen=True)
class Collective:
    """Part of an exchange: work, and then a message that needs its result.

    Attributes:
        work_seconds: time of the worker's computation for the message.
        kind: kind of collective, one of the `links` of a worker.
        sent_bytes: number of bytes that each worker sends to all others together.
    """

    work_seconds: float
    kind: str
    sent_bytes: float

    def __post_init__(self) -> None:
        require_at_least_0(self, "work_seconds", "a time")
        require_at_least_0(self, "sent_bytes", "a number of bytes")


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Gradients that are exchanged together.

    Attributes:
        size: number of their values.
        collectives: tuple of `Collective`, one after another.
        work_seconds: time of the computation with the last collective's result.
    """

    size: float
    collectives: tuple[Collective, ...]
    work_seconds: float = 0.0

    def __post_init__(self) -> None:
        require_at_least_0(self, "size", "a number of values")
        require_at_least_0(self, "work_seconds", "a time")

    @property
    def all_work_seconds(self) -> float:
        """Time of all computation for the exchange."""
        return self.work_seconds + sum(c.work_seconds for c in self.collectives)

    @property
    def sent_bytes(self) -> float:
        """Number of bytes that each worker sends in all."""
        return sum(c.sent_bytes for c in self.collectives)


@dataclasses.dataclass(frozen=True)
class Link:
    """Costs of a collective: seconds = latency + bytes that a worker sends / rate.

    Attributes:
        latency_seconds: time of the smallest message.
        bytes_per_second: rate at which a worker sends, while it receives as many bytes.
        work_seconds_per_byte: computing time that sending and receiving takes from the worker.
        work_seconds: computing time that every collective takes besides.
    """

    latency_seconds: float
    bytes_per_second: float
    work_seconds_per_byte: float = 0.0
    work_seconds: float = 0.0

    def __post_init__(self) -> None:
        require_at_least_0(self, "latency_seconds", "a time")
        require_at_least_0(self, "work_seconds_per_byte", "a time")
        require_at_least_0(self, "work_seconds", "a time")
        if not self.bytes_per_second > 0:
            raise ValueError(
                "bytes_per_second must be positive, because a link without bandwidth carries no "
                f"message. Received: bytes_per_second={self.bytes_per_second!r}."
            )

    def seconds(self, sent_bytes: float) -> float:
        """Returns the time of a collective in which each worker sends this many bytes."""
        return self.latency_seconds + sent_bytes / self.bytes_per_second

    def all_work_seconds(self, sent_bytes: float) -> float:
        """Returns the computing time that such a collective takes from a worker."""
        return self.work_seconds + sent_bytes * self.work_seconds_per_byte


@dataclasses.dataclass(frozen=True)
class Activations:
    """Messages of the members of a group that holds one model together.

    The members wait for each message. The messages of a pass are spread evenly over it.

    Attributes:
        members: number of members of a group.
        forward: tuple of `Collective` of the forward pass, each of which follows its part of it.
        backward: tuple of `Collective` of the backward pass, each of which precedes its part.
    """

    members: int = 1
    forward: tuple[Collective, ...] = ()
    backward: tuple[Collective, ...] = ()

    def __post_init__(self) -> None:
        require_whole("members", self.members, 1)

    @property
    def messages(self) -> tuple[Collective, ...]:
        """All messages of a step."""
        return (*self.forward, *self.backward)

    @property
    def sent_bytes(self) -> float:
        """Number of bytes that each member sends in all."""
        return sum(c.sent_bytes for c in self.messages)


@dataclasses.dataclass(frozen=True)
class Worker:
    """One of the workers of a job.

    Attributes:
        computation: `Computation` of a step.
        links: dictionary: `Link` by kind of collective.
        activations: `Activations` that it exchanges with the members of its group.
    """

    computation: Computation
    links: Mapping[str, Link]
    activations: Activations = dataclasses.field(default_factory=Activations)

    def link(self, kind: str) -> Link:
        """Returns the `Link` of a kind of collective, or raises ValueError without one."""
        if kind not in self.links:
            raise ValueError(
                "Every kind of collective needs a link. Received: links for "
                f"{sorted(self.links)}, and a collective of the kind {kind!r}."
            )
        return self.links[kind]


def within_nodes(
    buckets: Iterable[Bucket], workers_per_node: int, kind: str = "within node"
) -> list[Bucket]:
    """Returns the buckets of nodes whose workers add up gradients first and share the result.

    Args:
        buckets: list of `Bucket`, as nodes exchange them with each other.
        workers_per_node: number of workers of a node.
        kind: kind of the collectives within a node, which send values in full precision.

    Returns:
        List of `Bucket`. Each begins with the bytes of a reduce-scatter and an all-gather, together
        `2 (G - 1) / G` of the gradients for G workers.

    Raises:
        ValueError: if `workers_per_node` is not a positive whole number.

    Example:
        >>> from tf_onebit.planner import Bucket, Collective, within_nodes
        >>> one_bit = Bucket(1e6, (Collective(0.001, "all_gather", 125e3),))
        >>> [c.sent_bytes for c in within_nodes([one_bit], workers_per_node=4)[0].collectives]
        [6000000.0, 125000.0]
    """
    require_workers(workers_per_node)
    sent = 2 * (workers_per_node - 1) / workers_per_node * FLOAT_BYTES
    return [
        dataclasses.replace(
            bucket, collectives=(Collective(0.0, kind, sent * bucket.size), *bucket.collectives)
        )
        for bucket in buckets
    ]


def require_workers(workers: float, least: int = 1, whole: bool = True) -> None:
    """Raises ValueError for fewer workers than `least`, or, with `whole`, for a fraction."""
    if not workers >= least or (whole and not isinstance(workers, numbers.Integral)):
        needed = "one worker" if least == 1 else f"{least} workers"
        whole_ones = ", and whole ones" if whole and workers >= least else ""
        raise ValueError(
            f"A job needs at least {needed}{whole_ones}. Received: workers={workers!r}."
        )


def require_whole(name: str, value: object, least: int) -> None:
    """Raises ValueError unless an argument is a whole number of at least `least`."""
    if not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(
            f"{name} must be a whole number, at least {least}. Received: {name}={value!r}."
        )


def require_at_least_0(record: object, name: str, what: str) -> None:
    """Raises ValueError, with `what` as a description, unless an attribute is finite and >= 0."""
    value = getattr(record, name)
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be {what}, at least 0. Received: {name}={value!r}.")


def require_positive(name: str, value: float) -> None:
    """Raises ValueError unless an argument is a positive, finite number."""
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be a positive number. Received: {name}={value!r}.")
