"""Horovod's callbacks for Keras 3."""

import itertools

import keras
import tensorflow as tf

from tf_onebit.collectives import horovod as driver
from tf_onebit.collectives.requests import AllReduce, Broadcast
from tf_onebit.exchanges.handshake import enumerated, handshake
from tf_onebit.horovod.dead_reckoning import DeadReckoning
from tf_onebit.horovod.progress import compare
from tf_onebit.training.frames import find_fit
from tf_onebit.training.model_optimizers import is_built, optimizers_of
from tf_onebit.training.passes import exchange_in_step, follow_fit


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """All workers start from the weights of one, and from the state of its optimizers.

    A model that is not built yet is broadcast after its first step. Workers that make every step
    together also compare their numbers of batches here. Where Keras does not know them, they meet
    before every epoch, and one that waits in vain ends with an error.

    Args:
        root_rank: the worker whose variables are taken.

    Raises:
        ValueError: when it broadcasts, on all workers, if their models or optimizers have
            different variables; on all workers, if they have different numbers of batches.

    Example:
        >>> callback = BroadcastGlobalVariablesCallback(0)
        >>> callback.root_rank
        0
    """

    def __init__(self, root_rank=0):
        super().__init__()
        self.root_rank = root_rank
        self._done = False

    def on_train_begin(self, logs=None):
        self._done = False
        exchange = exchange_in_step(self.model)
        fit = find_fit(self.model)
        if fit is not None and exchange is not None:
            follow_fit(fit)
            # Before the first step a callback may still divide the workers into groups.
            if exchange.built:
                compare(fit, exchange)
        if is_built(self.model):
            self._broadcast()

    def on_train_batch_end(self, batch, logs=None):
        if not self._done:
            self._broadcast()

    def _broadcast(self):
        optimizers = optimizers_of(self.model)
        for optimizer in optimizers:
            if hasattr(optimizer, "gradient_exchange"):
                # What asynchronous workers have sent must not be applied to other weights.
                optimizer.gradient_exchange.drain("a broadcast of variables")
        if len(optimizers) == 1 and not optimizers[0].built:
            # Of several, a model alone knows which trains what.
            optimizers[0].build(self.model.trainable_variables)
        # `weights` leaves out the states of random generators: dropout differs between workers.
        weights, states = self.model.weights, [optimizer.variables for optimizer in optimizers]
        variables = list(itertools.chain(weights, *states))
        driver.meet(handshake("broadcast of variables", self._description(weights, states)))
        values = driver.meet(_broadcast(variables, self.root_rank))
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        self._done = True

    def _description(self, weights, states):
        description = [
            ("root_rank", str(self.root_rank)),
            *enumerated(
                "number of the model's variables",
                "variable {} of the model",
                *_kinds_and_names(weights),
            ),
            ("number of optimizers", str(len(states))),
        ]
        for i, state in enumerate(states):
            which = "the optimizer" if len(states) == 1 else f"optimizer {i}"
            description += enumerated(
                f"number of {which}'s variables",
                f"variable {{}} of {which}",
                *_kinds_and_names(state),
            )
        return description


def _kinds_and_names(variables):
    return [f"{tuple(v.shape)} {v.dtype}" for v in variables], [v.path for v in variables]


def _broadcast(variables, root):
    tensors = [tf.convert_to_tensor(variable) for variable in variables]
    return (yield Broadcast(tensors, root, "tf_onebit_broadcast"))


class MetricAverageCallback(keras.callbacks.Callback):
    """Replaces the metrics of an epoch by their means over the workers.

    Put it before callbacks that decide on metrics, such as `ReduceLROnPlateau`.

    Raises:
        ValueError: in `fit` with `AsynchronousOptimizer`, whose workers do not wait for each other.

    Example:
        >>> callbacks = [MetricAverageCallback(), keras.callbacks.ReduceLROnPlateau()]
    """

    def on_train_begin(self, logs=None):
        if isinstance(getattr(self.model.optimizer, "gradient_exchange", None), DeadReckoning):
            raise ValueError(
                "MetricAverageCallback would have asynchronous workers wait for each other after "
                "every epoch. Leave it out: each logs its own metrics."
            )

    def on_epoch_end(self, epoch, logs=None):
        if not logs:
            return
        names = sorted(logs)
        values = driver.meet(_mean([logs[name] for name in names]))
        logs.update(zip(names, map(float, values), strict=True))


def _mean(values):
    # The count travels along, so that the driver alone knows how many workers there are.
    (sums,) = yield AllReduce([tf.constant([*values, 1.0], tf.float64)], "tf_onebit_metrics")
    return (sums[:-1] / sums[-1]).numpy()
