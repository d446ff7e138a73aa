"""The optimizers of a model, and the gradients that they have under way."""

import contextlib
import inspect

import keras

from tf_onebit.training.optimizer import Distributed
from tf_onebit.training.shown import SHOWING, show_in

# As soon as the last step of an epoch is over, and before it validates, `fit` asks for its metrics.
_END_OF_EPOCH = "_get_metrics_result_or_logs"


def optimizers_of(model):
    """The Keras optimizers of a model: that it was compiled with, and others that it holds."""
    held = [getattr(model, "optimizer", None)]
    for value in vars(model).values():
        if isinstance(value, dict):
            value = list(value.values())
        held += value if isinstance(value, (list, tuple)) else [value]
    optimizers = {id(v): v for v in held if isinstance(v, keras.optimizers.Optimizer)}
    return list(optimizers.values())


def inner_optimizer(optimizer):
    """The optimizer that updates weights: what a `LossScaleOptimizer` wraps."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def flush(model):
    """Applies the gradients that are under way: those of the last steps, with `Delayed`.

    Each is an ordinary update, with momentum, clipping, decay and a count of iterations. Of a
    model without delay, or with nothing under way, nothing changes. All workers call it, after the
    same step. `fit` does so by itself, as `tf_onebit.Delayed` says; a loop of your own does before
    it looks at the weights, and at its end.

    Args:
        model: Keras model.

    Raises:
        InvalidArgumentError: on all workers, if a gradient of one was not finite.

    Example:
        >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", loss="mse")
        >>> flush(model)
    """
    for optimizer in _distributed(model):
        optimizer.flush()


@contextlib.contextmanager
def without_delay(model):
    """Context in which steps apply their own gradients, also with `Delayed`.

    It begins with a `flush`. All workers enter it after the same step.

    Args:
        model: Keras model.

    Example:
        >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", loss="mse")
        >>> with without_delay(model):
        ...     history = model.fit(keras.ops.ones([8, 8]), keras.ops.ones([8, 1]), verbose=0)
    """
    flush(model)
    exchanges = [optimizer.gradient_exchange for optimizer in _distributed(model)]
    for exchange in exchanges:
        exchange.set_delay(False)
    try:
        yield
    finally:
        for exchange in exchanges:
            exchange.set_delay(True)


def flush_where_shown(model):
    """Has a model in training flush before it shows what it has learned, for good."""

    @contextlib.contextmanager
    def flushed():
        flush(model)
        yield

    show_in(model, flushed, (*SHOWING, _END_OF_EPOCH))


def knowing_batch_size(model):
    """What of a model counts samples, and not steps: list of (object, steps of an update).

    The objects, optimizers and exchanges, have `global_batch_size` and `set_global_batch_size`,
    which count the samples of an update.
    """
    known = []
    for optimizer in map(inner_optimizer, optimizers_of(model)):
        steps = optimizer.gradient_accumulation_steps or 1
        for owner in (optimizer, getattr(optimizer, "gradient_exchange", None)):
            if hasattr(owner, "set_global_batch_size"):
                known.append((owner, steps))
    return known


def model_in_training(optimizer):
    """The model whose `train_step` calls for an update by an optimizer, or None."""
    frame = inspect.currentframe()
    while frame is not None:
        # Of no other frame's locals is there a copy made: it would keep them alive.
        if frame.f_code.co_name == "train_step":
            model = frame.f_locals.get("self")
            if isinstance(model, keras.Model) and optimizer in _distributed(model):
                return model
        frame = frame.f_back
    return None


def _distributed(model):
    inner = map(inner_optimizer, optimizers_of(model))
    return [optimizer for optimizer in inner if isinstance(optimizer, Distributed)]
