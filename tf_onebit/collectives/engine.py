"""Engine: carries the messages of the workers that run in this process."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from tf_onebit._framework_internals.tf_variables import plain_variables
from tf_onebit.collectives.requests import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Cond,
    Exchanging,
    Request,
    T,
    Within,
    drive,
    one_request,
)
from tf_onebit.collectives.whereabouts import Whereabouts


class Engine:
    """Carrier of the messages of the workers in this process.

    Attributes:
        world_size: number of workers of the engine.
        ranks: list of the ranks of the workers in this process: one of them, or all.
        members: sequence from each rank to the worker's rank among all workers of the job.
        whereabouts: `Whereabouts` of this process.
        node: `Engine` of the workers on this node, which answers requests `Within` it. None if
            there are no such requests.
    """

    node: "Engine | None" = None
    world_size: int
    ranks: list[int]
    whereabouts = Whereabouts()

    @property
    def members(self) -> Sequence[int]:
        return range(self.world_size)

    def run(self, generators: Iterable[Exchanging[T]]) -> list[T]:
        """Runs the exchanges of the workers `ranks`, in that order.

        Returns:
            List of the generators' return values.
        """
        raise NotImplementedError(f"{type(self).__name__} must define run.")

    def meet(
        self, generators: Iterable[Exchanging[T]], occasion: str = "", detail: str = ""
    ) -> list[T]:
        """Runs exchanges in eager mode, between two steps; all workers of the job must come.

        Args:
            generators: see `run`.
            occasion, detail: see `Whereabouts.meet`.

        Raises:
            RuntimeError: if a worker is at another place, or continues to train.
        """
        self.whereabouts.meet(occasion, detail)
        with self.whereabouts.naming_who_left():
            return self.run(generators)

    def place(self, index: int) -> AbstractContextManager[None]:
        """Returns a context in which to create the state of worker `ranks[index]`."""
        return plain_variables()


class ProcessEngine(Engine):
    """Engine with one worker in this process. Subclasses define how to carry each request."""

    node: "ProcessEngine | None" = None

    def run(self, generators: Iterable[Exchanging[T]]) -> list[T]:
        (generator,) = generators
        return [self.run_one(generator)]

    def run_one(self, generator: Exchanging[T]) -> T:
        """Runs the exchange of this worker, and answers its requests.

        It works in eager mode, and while a `tf.function` is traced. There every request becomes
        ops of the graph.

        Args:
            generator: the exchange of this worker.

        Returns:
            The return value of the generator.
        """
        return drive(generator, self._answer)

    def _all_to_all(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        raise NotImplementedError

    def _all_gather(self, request: AllGather) -> tf.Tensor:
        raise NotImplementedError

    def _all_reduce(self, request: AllReduce) -> list[tf.Tensor]:
        raise NotImplementedError

    def _broadcast(self, tensor: tf.Tensor, root: int, name: str) -> tf.Tensor:
        raise NotImplementedError

    def _answer(self, request: Request) -> Any:
        if isinstance(request, AllToAll):
            return self._all_to_all(request.tensor, request.name)
        if isinstance(request, AllGather):
            return self._all_gather(request)
        if isinstance(request, AllReduce):
            return self._all_reduce(request)
        if isinstance(request, Broadcast):
            return [
                self._broadcast(tensor, request.root, f"{request.name}/{i}")
                for i, tensor in enumerate(request.tensors)
            ]
        if isinstance(request, Cond):
            return tf.cond(
                request.predicate,
                lambda: self.run_one(request.then()),
                lambda: self.run_one(request.otherwise()),
            )
        if isinstance(request, Within) and self.node is not None:
            return self.node.run_one(one_request(request.request))
        raise TypeError(
            f"Expected a request of tf_onebit.collectives.requests. Received: {request!r}."
        )
