"""Division of a minibatch among workers."""

import dataclasses

import tensorflow as tf

from tf_onebit.collectives.horovod_size import horovod_size_or_1


@dataclasses.dataclass(frozen=True)
class Partition:
    """Workers of a job, and how they divide a minibatch.

    Attributes:
        rank: of this process.
        world_size: number of processes.
        replicas: number of devices of a process. Each trains on its own part.
        strategy: `tf.distribute.Strategy` that takes the parts of several replicas, or None.
        steps_per_execution: of the model.
    """

    rank: int = 0
    world_size: int = 1
    replicas: int = 1
    strategy: tf.distribute.Strategy | None = None
    steps_per_execution: int = 1

    @property
    def parts(self):
        """Number of parts of a minibatch."""
        return self.world_size * self.replicas

    def bounds(self, start, stop):
        """Returns the bounds of this process's parts of the samples `start` to `stop`.

        Part k of P of n samples has the samples floor(k n / P) to floor((k + 1) n / P).
        """
        first = self.rank * self.replicas
        cuts = [
            start + (stop - start) * part // self.parts
            for part in range(first, first + self.replicas + 1)
        ]
        return list(zip(cuts[:-1], cuts[1:], strict=True))


def partition_in_fit(model, strategy, steps_per_execution, rank, world_size):
    """Finds how the processes of a `model.fit` divide its minibatches.

    Args:
        model: Keras model.
        strategy: `tf.distribute.Strategy` of the model, which may be TensorFlow's default one.
        steps_per_execution: of the model.
        rank, world_size: as given by the user, or None.

    Returns:
        `Partition`, and the `Engine` that connects the processes, or None.

    Raises:
        ValueError: if rank and world_size contradict the strategy or the optimizer. If they are
            missing in a Horovod job whose optimizer does not know the workers. For a strategy
            whose workers are not known.
    """
    engine = getattr(strategy.extended, "engine", None) or _engine_of_optimizer(model)
    if engine is not None and len(engine.ranks) == engine.world_size:
        engine = None  # all workers are in this process
    found = (engine.ranks[0], engine.world_size) if engine else None
    given = None if rank is None else (rank, world_size)
    if found and given and found != given:
        raise ValueError(
            f"rank and world_size must agree with the job. Received: rank={rank}, "
            f"world_size={world_size}, in a process that is worker {found[0]} of {found[1]}. "
            "Leave them out to take them from the model's strategy or optimizer."
        )
    if not found and not given and horovod_size_or_1() > 1:
        raise ValueError(
            "Every worker must train on its own part of each minibatch. Received: "
            f"{horovod_size_or_1()} workers of Horovod, and a model whose optimizer does not "
            "connect them. Give rank=hvd.rank(), world_size=hvd.size()."
        )
    rank, world_size = found or given or (0, 1)
    replicas = strategy.num_replicas_in_sync
    if engine is not None and engine is getattr(strategy.extended, "engine", None):
        replicas //= world_size
    if replicas > 1 and replicas != len(strategy.extended.worker_devices):
        raise ValueError(
            "ResizableBatches cannot tell which replicas of the strategy belong to which worker. "
            f"Received: {type(strategy).__name__} with {replicas} replicas, of which this process "
            f"has {len(strategy.extended.worker_devices)}. Use "
            "tf_onebit.distribute.MultiWorkerMirroredStrategy."
        )
    several = strategy if replicas > 1 else None
    return Partition(rank, world_size, replicas, several, steps_per_execution), engine


def _engine_of_optimizer(model):
    optimizer = model.optimizer
    while optimizer is not None:
        exchange = getattr(optimizer, "gradient_exchange", None)
        if exchange is not None:
            return exchange.workers.engine
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return None
