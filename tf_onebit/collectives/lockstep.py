"""LockstepEngine: all workers in one program, for simulation, tests and several local devices."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from tf_onebit._framework_internals.tf_variables import on_device, plain_variables
from tf_onebit.collectives.engine import Engine
from tf_onebit.collectives.ordered_sum import added_in_order
from tf_onebit.collectives.requests import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Cond,
    Exchanging,
    T,
    Within,
)


class LockstepEngine(Engine):
    """Engine of all workers in this program, each on a device of its own.

    Args:
        devices: list of the devices' names, in the order of ranks.
    """

    def __init__(self, devices: Iterable[str | None]) -> None:
        self._devices = list(devices)
        self.world_size = len(self._devices)
        self.ranks = list(range(self.world_size))

    def run(self, generators: Iterable[Exchanging[T]]) -> list[T]:
        return run(generators, self._devices)

    def place(self, index: int) -> AbstractContextManager[None]:
        return plain_variables(self._devices[index])


def run(
    generators: Iterable[Exchanging[T]],
    devices: Sequence[str | None] | None = None,
    per_node: int = 1,
) -> list[T]:
    """Advances the generators of all workers together and answers their requests.

    Args:
        generators: list; entry k is the exchange of rank k.
        devices: list; entry k is the device of rank k. Default: TensorFlow chooses.
        per_node: number of workers on a node, which have consecutive ranks. They answer each
            other's requests `Within` the node. Other requests are of the workers at the same place
            in all nodes.

    Returns:
        List of the generators' return values.

    Raises:
        RuntimeError: if workers request different collectives.

    Example:
        >>> def total(rank):
        ...     (answer,) = yield AllReduce([tf.constant(rank)], name="total")
        ...     return int(answer)
        >>> run([total(1), total(2), total(3)])
        [6, 6, 6]
    """
    generators = list(generators)
    devices = devices or [None] * len(generators)
    answers: list[Any] = [None] * len(generators)
    while True:
        requests, results = [], []
        for generator, answer, device in zip(generators, answers, devices, strict=True):
            try:
                with on_device(device):
                    requests.append(generator.send(answer))
            except StopIteration as stop:
                results.append(stop.value)
        if not requests:
            return results
        asked = {(type(request), getattr(request, "name", None)) for request in requests}
        if results or len(asked) > 1:
            raise RuntimeError(
                "Workers must yield the same requests in the same order. Received: "
                f"{len(results)} workers that have ended and the requests "
                f"{sorted((kind.__name__, name) for kind, name in asked)}."
            )
        answers = _answers(requests, devices, per_node)


def _answers(requests: list[Any], devices: Sequence[str | None], per_node: int) -> list[Any]:
    first = requests[0]
    if isinstance(first, Cond):
        # One branch for all workers: they have the same predicate, and must communicate inside.
        def branch(side: str) -> Callable[[], list[Any]]:
            return lambda: run([getattr(one, side)() for one in requests], devices, per_node)

        return tf.cond(first.predicate, branch("then"), branch("otherwise"))
    ranks = list(range(len(requests)))
    if isinstance(first, Within):
        requests = [request.request for request in requests]
        groups = [ranks[start:][:per_node] for start in ranks[::per_node]]
    else:
        groups = [ranks[place::per_node] for place in range(per_node)]
    answers = [None] * len(requests)
    for group in groups:
        of_group = _answers_of([requests[rank] for rank in group])
        for rank, answer in zip(group, of_group, strict=True):
            answers[rank] = answer
    return answers


def _answers_of(requests: Sequence[Any]) -> list[Any]:
    first, world_size = requests[0], len(requests)
    if isinstance(first, AllToAll):
        rows = [tf.unstack(request.tensor, num=world_size) for request in requests]
        return [tf.stack(column) for column in zip(*rows, strict=True)]
    if isinstance(first, AllGather):
        return [tf.concat([request.tensor for request in requests], axis=0)] * world_size
    if isinstance(first, AllReduce):
        columns = zip(*(request.tensors for request in requests), strict=True)
        sums = [added_in_order(column) for column in columns]
        # In float64: the default, float32, would round it before the cast to the tensors' type.
        scale = tf.constant(first.scale, tf.float64)
        return [[total * tf.cast(scale, total.dtype) for total in sums]] * world_size
    if isinstance(first, Broadcast):
        return [list(requests[first.root].tensors)] * world_size
    raise TypeError(f"Expected a request of tf_onebit.collectives.requests. Received: {first!r}.")
