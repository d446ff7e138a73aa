"""Horovod's callbacks for Keras 3."""

import itertools
from collections.abc import Iterable
from typing import TypeAlias

import keras
import tensorflow as tf

from tf_onebit._framework_internals.keras_calls import find_fit
from tf_onebit._training.model_optimizers import (
    gradient_exchanges_of,
    is_built,
    optimizers_of,
)
from tf_onebit._training.passes import compare, exchange_in_step, follow_fit
from tf_onebit.collectives.horovod import HorovodEngine
from tf_onebit.collectives.requests import AllReduce
from tf_onebit.exchanges.handshake import enumerated, handshake
from tf_onebit.horovod.best_model import BestModelCheckpoint
from tf_onebit.horovod.broadcast import broadcast_values, kinds_and_names
from tf_onebit.horovod.learning_rate import LearningRateScheduleCallback, LearningRateWarmupCallback
from tf_onebit.horovod.local_variables import LocalVariables

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]

_Variable: TypeAlias = tf.Variable | keras.Variable


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Callback that broadcasts the weights of one worker, and the state of its optimizers.

    It broadcasts a model that is not built yet after the first step. Workers that make every step
    together also compare their numbers of batches. Where Keras does not know the number, workers
    meet before every epoch. A worker that waits for the others in vain ends with an error.

    If an exchange has local moments, each worker has moments of its own. All get those of one
    worker, also at the begin of each further `fit`. Training goes on, but is not the same as
    without the broadcast. A first `fit` begins with moments of zero, and loses nothing.

    Args:
        root_rank: rank of the worker whose variables all take over.
        device: name of the device that carries messages. Default: Horovod's choice.
        local_variables: variable of the model, or list of them, of TensorFlow or Keras. Each
            worker keeps its own values of them.

    Raises:
        ValueError: at the broadcast, on all workers, if their models or optimizers have different
            variables. Also on all workers, if they have different numbers of batches.

    Example:
        >>> callback = BroadcastGlobalVariablesCallback(0)
        >>> callback.root_rank
        0
    """

    def __init__(
        self,
        root_rank: int = 0,
        device: str = "",
        local_variables: Iterable[_Variable] | _Variable | None = None,
    ) -> None:
        super().__init__()
        self.root_rank = root_rank
        self._engine = HorovodEngine(device=device)
        self._local = LocalVariables()
        self._done = False
        if isinstance(local_variables, (tf.Variable, keras.Variable)):
            local_variables = [local_variables]
        for variable in local_variables or []:
            self.register_local_var(variable)

    def register_local_var(self, var: _Variable) -> None:
        """Registers a variable whose value each worker keeps.

        Args:
            var: `tf.Variable` or `keras.Variable` of the model.
        """
        self._local.add(var)

    def on_train_begin(self, logs=None):
        self._done = False
        exchange = exchange_in_step(self.model)
        fit = find_fit(self.model)
        if fit is not None and exchange is not None:
            follow_fit(fit)
            # Before the first step a callback may still divide the workers into groups.
            if exchange.built:
                compare(fit, exchange.workers.engine)
        if is_built(self.model):
            self._broadcast()

    def on_train_batch_end(self, batch, logs=None):
        if not self._done:
            self._broadcast()

    def _broadcast(self):
        optimizers = optimizers_of(self.model)
        for optimizer in optimizers:
            if hasattr(optimizer, "gradient_exchange"):
                # Deltas under way belong to the weights before the broadcast.
                optimizer.gradient_exchange.drain("a broadcast of variables")
        if len(optimizers) == 1 and not optimizers[0].built:
            # With several optimizers only the model knows which variables each of them trains.
            optimizers[0].build(self.model.trainable_variables)
        # `weights` lacks the states of random generators, so dropout differs between workers.
        weights = [weight for weight in self.model.weights if weight not in self._local]
        states = [optimizer.variables for optimizer in optimizers]
        variables = list(itertools.chain(weights, *states))
        description = self._description(weights, states)
        broadcast_values(variables, self.root_rank, self._engine, description)
        self._done = True

    def _description(self, weights, states):
        description = [
            ("root_rank", str(self.root_rank)),
            *enumerated(
                "number of the model's variables",
                "variable {} of the model",
                *kinds_and_names(weights),
            ),
            ("number of optimizers", str(len(states))),
        ]
        for i, state in enumerate(states):
            which = "the optimizer" if len(states) == 1 else f"optimizer {i}"
            description += enumerated(
                f"number of {which}'s variables",
                f"variable {{}} of {which}",
                *kinds_and_names(state),
            )
        return description


class MetricAverageCallback(keras.callbacks.Callback):
    """Callback that replaces the metrics of an epoch by their means over the workers.

    Put it before callbacks that use metrics, such as `ReduceLROnPlateau`.

    Args:
        device: name of the device that carries messages. Default: Horovod's choice.

    Raises:
        ValueError: in `fit` with `AsynchronousOptimizer`, whose workers do not wait for each other.
            Also at the end of an epoch, on all workers, if they have different metrics.

    Example:
        >>> callbacks = [MetricAverageCallback(), keras.callbacks.ReduceLROnPlateau()]
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self._engine = HorovodEngine(device=device)

    def on_train_begin(self, logs=None):
        if any(exchange.is_asynchronous for exchange in gradient_exchanges_of(self.model)):
            raise ValueError(
                "MetricAverageCallback makes asynchronous workers wait for each other after "
                "every epoch. Leave it out. Then each worker logs its own metrics."
            )

    def on_epoch_end(self, epoch, logs=None):
        if not logs:
            return
        names = sorted(logs)
        (values,) = self._engine.meet([_mean(names, [logs[name] for name in names])])
        logs.update(zip(names, map(float, values), strict=True))


def _mean(names, values):
    yield from handshake("metrics of an epoch", enumerated("number of metrics", "metric {}", names))
    # The sum of ones is the number of workers, which only the driver of this generator knows.
    (sums,) = yield AllReduce([tf.constant([*values, 1.0], tf.float64)], "tf_onebit_metrics")
    return (sums[:-1] / sums[-1]).numpy()
