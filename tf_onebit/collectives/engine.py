"""What carries the messages of the workers that run in this process."""

import tensorflow as tf

from tf_onebit.collectives.requests import AllGather, AllReduce, AllToAll, Broadcast, Cond
from tf_onebit.collectives.variable_creation import plain_variables
from tf_onebit.collectives.whereabouts import Whereabouts


class Engine:
    """The workers of a job that run in this process, and who carries their messages.

    Attributes:
        world_size: number of workers of the job.
        ranks: list of the ranks of those in this process: one of them, or all.
        members: sequence: by rank, what rank a worker has among all of the job.
        whereabouts: `Whereabouts` of this process.
    """

    world_size: int
    ranks: list
    whereabouts = Whereabouts()

    @property
    def members(self):
        return range(self.world_size)

    def run(self, generators):
        """Runs the exchanges of `ranks`, in that order.

        Returns:
            List of what each generator returned.
        """
        raise NotImplementedError(f"{type(self).__name__} must define run.")

    def meet(self, generators, occasion="", detail=""):
        """Runs exchanges between two steps, in eager mode, where all workers of the job must come.

        Args:
            generators: as of `run`.
            occasion, detail: see `Whereabouts.meet`.

        Raises:
            RuntimeError: if one is at another place, or trains on.
        """
        self.whereabouts.meet(occasion, detail)
        with self.whereabouts.naming_who_left():
            return self.run(generators)

    def place(self, index):
        """Context in which the state of worker `ranks[index]` is created."""
        return plain_variables()


class ProcessEngine(Engine):
    """One worker in this process. Subclasses define how each of its requests is carried."""

    def run(self, generators):
        (generator,) = generators
        return [self.run_one(generator)]

    def run_one(self, generator):
        """Runs the exchange of this worker, and answers its requests.

        Works in eager mode and while a `tf.function` is traced, where every request becomes ops
        of the graph.

        Args:
            generator: the exchange of this worker.

        Returns:
            What the generator returned.
        """
        answer = None
        while True:
            try:
                request = generator.send(answer)
            except StopIteration as stop:
                return stop.value
            answer = self._answer(request)

    def _answer(self, request):
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
        raise TypeError(
            f"Expected a request of tf_onebit.collectives.requests. Received: {request!r}."
        )
