"""Requests: the collectives that an exchange can ask for, as plain data.

An exchange is a generator, written from one worker's point of view. It yields a request, and
receives the answer. An engine (`lockstep`, `horovod`) decides how to carry it. Every worker
yields the same requests in the same order.
"""

import dataclasses
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeAlias, TypeVar

import tensorflow as tf

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class AllToAll:
    """All-to-all of `tensor` `[world_size, ...]`, whose row k goes to rank k.

    The answer has the same shape, and its row k came from rank k.
    """

    tensor: tf.Tensor
    name: str


@dataclasses.dataclass(frozen=True)
class AllGather:
    """All-gather, which joins the workers' tensors along axis 0 in the order of ranks.

    All workers' shapes are the same. With `uneven` their first dimensions may differ. A shape that
    changes from step to step must be one of a few. Then `variant` says which: an int32 scalar from
    0 to 127, the same on all workers.
    """

    tensor: tf.Tensor
    name: str
    uneven: bool = False
    variant: tf.Tensor | int = 0


@dataclasses.dataclass(frozen=True)
class AllReduce:
    """All-reduce, which returns `scale` times the sum over the workers for each of `tensors`."""

    tensors: Sequence[tf.Tensor]
    name: str
    scale: float = 1.0


@dataclasses.dataclass(frozen=True)
class Broadcast:
    """Broadcast of the `tensors` of rank `root`, which all workers receive."""

    tensors: Sequence[tf.Tensor]
    root: int
    name: str


@dataclasses.dataclass(frozen=True)
class Cond:
    """Branch that communicates, answered by the return value of the chosen generator.

    `predicate` is a boolean tensor, the same on all workers. `then` and `otherwise` create
    generators that return the same structure of tensors.
    """

    predicate: tf.Tensor
    then: Callable[[], "Exchanging[Any]"]
    otherwise: Callable[[], "Exchanging[Any]"]


Collective: TypeAlias = AllToAll | AllGather | AllReduce | Broadcast


@dataclasses.dataclass(frozen=True)
class Within:
    """Collective of the workers on the same node, where other requests are of all nodes.

    Ranks and shapes in `request` are those of the workers of the node.
    """

    request: Collective


Request: TypeAlias = Collective | Cond | Within
# A generator that yields requests, receives their answers, and returns a T.
Exchanging: TypeAlias = Generator[Request, Any, T]


def sent_bytes(
    request: Collective, size_bytes: int | tf.Tensor, world_size: int
) -> tuple[str, int | tf.Tensor]:
    """Returns the kind of a request, and the bytes that each worker sends for it.

    Args:
        request: `AllToAll`, `AllGather` or `AllReduce`.
        size_bytes: size of its tensors in bytes: int or int tensor.
        world_size: number of workers.
    """
    others = world_size - 1
    if isinstance(request, AllToAll):
        return "all_to_all", others * size_bytes // world_size
    if isinstance(request, AllGather):
        return "all_gather", others * size_bytes
    if isinstance(request, AllReduce):
        return "all_reduce", all_reduce_bytes(size_bytes, world_size)
    raise TypeError(f"An exchange of gradients cannot yield this request. Received: {request!r}.")


def all_reduce_bytes(size_bytes: int, world_size: int) -> int:
    """Returns the bytes that each worker sends in an all-reduce of `size_bytes` bytes."""
    return 2 * (world_size - 1) * size_bytes // world_size


def tensors_of(request: Collective) -> list[tf.Tensor]:
    """Returns the tensors of a request: list."""
    if isinstance(request, AllReduce | Broadcast):
        return list(request.tensors)
    return [request.tensor]


def with_tensors(request: Collective, tensors: Sequence[tf.Tensor]) -> Collective:
    """Returns the same request with other tensors."""
    if isinstance(request, AllReduce | Broadcast):
        return dataclasses.replace(request, tensors=tensors)
    (tensor,) = tensors
    return dataclasses.replace(request, tensor=tensor)


def drive(generator: Exchanging[T], answer_to: Callable[[Request], Any]) -> T:
    """Runs a generator of requests to its end. Returns its return value.

    Args:
        generator: generator of requests.
        answer_to: function from a request to its answer.
    """
    answer = None
    while True:
        try:
            request = generator.send(answer)
        except StopIteration as stop:
            return stop.value
        answer = answer_to(request)


def one_request(request: Request) -> Exchanging[Any]:
    """Generator: makes one request, and returns its answer."""
    return (yield request)


def within_node(generator: Exchanging[T]) -> Exchanging[T]:
    """Generator: makes the requests of another, each `Within` the node."""
    return map_requests(generator, lambda request: one_request(Within(request)))


def tap_requests(generator: Exchanging[T], note: Callable[[Collective], None]) -> Exchanging[T]:
    """Generator: passes on the requests of another, and calls `note` with each of them.

    `note` gets the requests within the branches of a `Cond`, but not the `Cond` itself.
    """

    def noted(request: Collective) -> Exchanging[Any]:
        note(request)
        return (yield request)

    return map_requests(generator, noted)


def map_requests(
    generator: Exchanging[T], answer_of: Callable[[Collective], Exchanging[Any]]
) -> Exchanging[T]:
    """Generator: replaces the requests of another, also in the branches of a `Cond`.

    Requests `Within` the node stay as they are.

    Args:
        generator: generator of the requests.
        answer_of: function from a request to a generator. That yields other requests in its place,
            and returns the answer.
    """

    def branch(make: Callable[[], Exchanging[Any]]) -> Callable[[], Exchanging[Any]]:
        return lambda: map_requests(make(), answer_of)

    answer: Any = None
    while True:
        try:
            request = generator.send(answer)
        except StopIteration as stop:
            return stop.value
        if isinstance(request, Cond):
            then, otherwise = branch(request.then), branch(request.otherwise)
            answer = yield dataclasses.replace(request, then=then, otherwise=otherwise)
        elif isinstance(request, Within):
            answer = yield request
        else:
            answer = yield from answer_of(request)
