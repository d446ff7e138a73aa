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
