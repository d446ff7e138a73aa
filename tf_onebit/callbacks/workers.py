"""The processes of a job, as callbacks find them."""

import json

import numpy as np
import tensorflow as tf

from tf_onebit.callbacks import training_state
from tf_onebit.collectives.found import workers_of_horovod
from tf_onebit.collectives.requests import AllGather, ask
from tf_onebit.exchanges import Local
from tf_onebit.exchanges.handshake import handshake


class Workers:
    """The processes of a job, as a model's optimizers know them.

    Args:
        model: Keras model.
        purpose: what a callback does with them, as "BackupAndRestore saves".

    Raises:
        ValueError: if Horovod connects several workers, and the model's optimizer does not.
    """

    def __init__(self, model, purpose):
        exchanges = training_state.gradient_exchanges_of(model)
        engine = exchanges[0].engine if exchanges else None
        if engine is None and workers_of_horovod() > 1:
            raise ValueError(
                f"{purpose} the workers of a job through their optimizer. Received: "
                f"{workers_of_horovod()} workers of Horovod, and a model whose optimizer does not "
                "connect them. Compile it with tf_onebit.horovod.DistributedOptimizer."
            )
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

    def require_alike(self, callback, settings):
        """Raises ValueError on all workers if a callback's settings differ between them.

        Args:
            callback: its name.
            settings: dictionary of what JSON can hold.
        """
        if self._engine is not None:
            mine = [(f"{name} of {callback}", json.dumps(v)) for name, v in settings.items()]
            self._engine.run([handshake(callback, mine)])

    def mean(self, value):
        """The mean of a float over the processes, to the same bits on all."""
        parts = np.array([value], np.float64).view(np.int32).tolist()
        return float(np.mean(np.array(self._gather(parts), np.int32).view(np.float64)))

    def _gather(self, numbers):
        """The numbers of all processes: `[count, len(numbers)]`."""
        if self._engine is None:
            return np.array([numbers])
        mine = AllGather(tf.constant([numbers], tf.int32), "tf_onebit/callbacks")
        (gathered,) = self._engine.run([ask(mine)])
        return gathered.numpy()


def require_together(model, callback):
    """Raises ValueError where the workers of a job do not make every step together.

    Args:
        model: Keras model.
        callback: name of the callback whose decisions all make at the same step.
    """
    for exchange in training_state.gradient_exchanges_of(model):
        apart = isinstance(exchange.template, Local) and exchange.engine.world_size > 1
        if apart or exchange.is_asynchronous:
            raise ValueError(
                f"{callback} needs workers that make every step together. Received: an optimizer "
                f"with the exchange {type(exchange.template).__name__}, whose workers train apart. "
                "Use another exchange, with DistributedOptimizer or a strategy, or leave it out."
            )
