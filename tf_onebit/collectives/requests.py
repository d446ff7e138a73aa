"""The collectives that an exchange can ask for: plain data.

An exchange is written as a generator, from one worker's point of view. It yields a request and
is sent the answer; a driver (`lockstep`, `horovod`) decides how. Every worker yields the same
requests in the same order.
"""

import dataclasses
from collections.abc import Callable, Generator
from typing import Any


@dataclasses.dataclass(frozen=True)
class AllToAll:
    """Row k of `tensor` `[world_size, ...]` goes to rank k. Answer: row k came from rank k."""

    tensor: Any
    name: str


@dataclasses.dataclass(frozen=True)
class AllGather:
    """Answer: the workers' tensors, joined along axis 0 in the order of ranks.

    Their shapes are the same, but for the first dimension if it is `uneven`. A shape that changes
    from step to step must be one of few: then `variant` says which, as an int32 scalar from 0 to
    127 that is the same on all workers.
    """

    tensor: Any
    name: str
    uneven: bool = False
    variant: Any = 0


@dataclasses.dataclass(frozen=True)
class AllReduce:
    """Answer: for each of `tensors`, `scale` times the sum over the workers."""

    tensors: list
    name: str
    scale: float = 1.0


@dataclasses.dataclass(frozen=True)
class Broadcast:
    """Answer: for each of `tensors`, that of rank `root`."""

    tensors: list
    root: int
    name: str


@dataclasses.dataclass(frozen=True)
class Cond:
    """A branch that communicates. Answer: what the chosen generator returns.

    `predicate` is a boolean tensor, the same on all workers. `then` and `otherwise` make
    generators that return the same structure of tensors.
    """

    predicate: Any
    then: Callable[[], Generator]
    otherwise: Callable[[], Generator]


def sent_bytes(request, size_bytes, world_size):
    """Returns the kind of a request, and the bytes of its tensors that each worker sends.

    Args:
        request: `AllToAll`, `AllGather` or `AllReduce`.
        size_bytes: bytes of its tensors: int, or int tensor.
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
    """Returns what each worker sends in an all-reduce of so many bytes."""
    return 2 * (world_size - 1) * size_bytes // world_size


def tensors_of(request):
    """Returns the tensors that a worker sends by a request: list."""
    return list(request.tensors) if isinstance(request, AllReduce) else [request.tensor]


def with_tensors(request, tensors):
    """Returns the same request for other tensors."""
    if isinstance(request, AllReduce):
        return dataclasses.replace(request, tensors=tensors)
    (tensor,) = tensors
    return dataclasses.replace(request, tensor=tensor)


def one_request(request):
    """Generator of one request. Returns its answer."""
    return (yield request)


def tap_requests(generator, note):
    """Generator: passes on the requests of another, and calls `note` with each of them.

    `note` is called with the requests within the branches of a `Cond`, and not with the `Cond`.
    """

    def noted(request):
        note(request)
        return (yield request)

    return map_requests(generator, noted)


def map_requests(generator, answer_of):
    """Generator: replaces the requests of another, also in the branches of a `Cond`.

    Args:
        generator: makes the requests.
        answer_of: function from a request, other than a `Cond`, to a generator that yields other
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
