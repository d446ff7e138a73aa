"""The processes of a job, as callbacks find them."""

import sys

import numpy as np
import tensorflow as tf

from tf_onebit.callbacks import training_state
from tf_onebit.collectives.requests import AllGather, ask


class Workers:
    """The processes of a job, as a model's optimizers know them.

    Args:
        model: Keras model.

    Raises:
        ValueError: if Horovod connects several workers, and the model's optimizer does not.
    """

    def __init__(self, model):
        exchanges = training_state.gradient_exchanges_of(model)
        engine = exchanges[0].engine if exchanges else None
        if engine is None:
            _require_no_horovod()
        self.in_strategy = model._distribute_strategy is not None
        # Where all workers are in this process, it is alone.
        alone = engine is None or len(engine.ranks) == engine.world_size
        self._engine = None if alone else engine
        self.rank = self._engine.ranks[0] if self._engine else 0
        self.count = self._engine.world_size if self._engine else 1
        self.world_size = engine.world_size if engine else 1

    def place_among(self, count):
        """Of an earlier run's processes, the one whose variables this one takes over."""
        return self.rank if count == self.count else 0

    def all_true(self, value):
        return bool(np.all(self._gather([int(value)])))

    def wait_for_all(self):
        self._gather([0])

    def of_first(self, numbers):
        """What rank 0 gives for a list of whole numbers, which is as long on all."""
        return self._gather(numbers)[0]

    def _gather(self, numbers):
        """The numbers of all processes: `[count, len(numbers)]`."""
        if self._engine is None:
            return np.array([numbers])
        mine = AllGather(tf.constant([numbers], tf.int32), "tf_onebit/backup")
        (gathered,) = self._engine.run([ask(mine)])
        return gathered.numpy()


def _require_no_horovod():
    hvd = sys.modules.get("horovod.tensorflow")
    if hvd is not None and hvd.is_initialized() and hvd.size() > 1:
        raise ValueError(
            "BackupAndRestore saves the workers of a job through their optimizer. Received: "
            f"{hvd.size()} workers of Horovod, and a model whose optimizer does not connect them. "
            "Compile it with tf_onebit.horovod.DistributedOptimizer."
        )
