"""Requests: the collectives that an exchange can ask for, as plain data.

An exchange is a generator, written from one worker's point of view. It yields a request, and
receives the answer. An engine (`lockstep`, `horovod`) decides how to carry it. Every worker
yields the same requests in the same order.
"""

import dataclasses
from collections.abc import Callable, Generator
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class AllToAll:
    """All-to-all of `tensor` `[world_size, ...]`, whose row k goes to rank k.

    The answer has the same shape, and its row k came from rank k.
    """

    tensor: Any
    name: str


@dataclasses.dataclass(frozen=True)
class AllGather:
    """All-gather, which joins the workers' tensors along axis 0 in the order of ranks.

    All workers' shapes are the same. With `uneven` their first dimensions may differ. A shape that
    changes from step to step must be one of a few. Then `variant` says which: an int32 scalar from
    0 to 127, the same on all workers.
    """

    tensor: Any
    name: str
    uneven: bool = False
    variant: Any = 0


@dataclasses.dataclass(frozen=True)
class AllReduce:
    """All-reduce, which returns `scale` times the sum over the workers for each of `tensors`."""

    tensors: list
    name: str
    scale: float = 1.0


@dataclasses.dataclass(frozen=True)
class Broadcast:
    """Broadcast of the `tensors` of rank `root`, which all workers receive."""

    tensors: list
    root: int
    name: str


@dataclasses.dataclass(frozen=True)
class Cond:
    """Branch that communicates, answered by the return value of the chosen generator.

    `predicate` is a boolean tensor, the same on all workers. `then` and `otherwise` create
    generators that return the same structure of tensors.
    """

    predicate: Any
    then: Callable[[], "Exchanging[Any]"]
    otherwise: Callable[[], "Exchanging[Any]"]


Request: TypeAlias = AllToAll | AllGather | AllReduce | Broadcast | Cond
# A generator that yields requests, receives their answers, and returns a T.
Exchanging: TypeAlias = Generator[Request, Any, T]


def sent_bytes(request, size_bytes, world_size):
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
    raise TypeError(f"No exchange of gradients asks for this. Received: {request!r}.")


def all_reduce_bytes(size_bytes, world_size):
    """Returns the bytes that each worker sends in an all-reduce of `size_bytes` bytes."""
    return 2 * (world_size - 1) * size_bytes // world_size


def tensors_of(request):
    """Returns the tensors of a request: list."""
    return list(request.tensors) if isinstance(request, AllReduce) else [request.tensor]


def with_tensors(request, tensors):
    """Returns the same request with other tensors."""
    if isinstance(request, AllReduce):
        return dataclasses.replace(request, tensors=tensors)
    (tensor,) = tensors
    return dataclasses.replace(request, tensor=tensor)


def drive(generator, answer_to):
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


def one_request(request):
    """Generator: makes one request, and returns its answer."""
    return (yield request)


def tap_requests(generator, note):
    """Generator: passes on the requests of another, and calls `note` with each of them.

    `note` gets the requests within the branches of a `Cond`, but not the `Cond` itself.
    """

    def noted(request):
        note(request)
        return (yield request)

    return map_requests(generator, noted)


def map_requests(generator, answer_of):
    """Generator: replaces the requests of another, also in the branches of a `Cond`.

    Args:
        generator: generator of the requests.
        answer_of: function from a request, never a `Cond`, to a generator. That yields other
            requests in its place, and returns the answer.
    """

    def branch(make):
        return lambda: map_requests(make(), answer_of)

    answer = None
    while True:
        try:
            request = generator.send(answer)
        except StopIteration as stop:
            return stop.value
        if isinstance(request, Cond):
            then, otherwise = branch(request.then), branch(request.otherwise)
            answer = yield dataclasses.replace(request, then=then, otherwise=otherwise)
        else:
            answer = yield from answer_of(request)
