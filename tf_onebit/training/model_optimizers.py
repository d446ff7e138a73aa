"""The optimizers of a model, and the gradients that they have under way."""

import contextlib

import keras

from tf_onebit.training.frames import calling_method
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


def gradient_exchanges_of(model):
    """List of the `GradientExchange` of a model's optimizers, without doubles."""
    found = [getattr(o, "gradient_exchange", None) for o in optimizers_of(model)]
    return list({id(exchange): exchange for exchange in found if exchange is not None}.values())


def is_built(model):
    """Tells whether a model has its variables.

    Those of a GAN are in the models that it holds. It is not built itself: it has no `call`.
    """
    layers = [layer for layer in model._flatten_layers() if layer is not model]
    return all(layer.built for layer in layers or [model])


def inner_optimizer(optimizer):
    """The optimizer that updates weights: what a `LossScaleOptimizer` wraps."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def flush(model_or_optimizer):
    """Applies the gradients that are under way: those of the last steps, with `Delayed`.

    Each is an ordinary update, with momentum, clipping, decay and a count of iterations. Of a
    model without delay, or with nothing under way, nothing changes. All workers call it, after the
    same step. `fit` does so by itself, as `tf_onebit.Delayed` says; a loop of your own does before
    it looks at the weights, and at its end.

    Args:
        model_or_optimizer: Keras model, for the optimizers that it was compiled with or holds, or
            the optimizer that a loop of your own uses.

    Raises:
        InvalidArgumentError: on all workers, if a gradient of one was not finite.
        ValueError: for an optimizer that exchanges no gradients.

    Example:
        >>> import tf_onebit
        >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", loss="mse")
        >>> tf_onebit.flush(model)
    """
    for optimizer in _distributed(model_or_optimizer):
        optimizer.flush()


@contextlib.contextmanager
def without_delay(model_or_optimizer):
    """Context in which steps apply their own gradients, also with `Delayed`.

    It begins with a `flush`. All workers enter it after the same step.

    Args:
        model_or_optimizer: as for `flush`.

    Example:
        >>> import tf_onebit
        >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", loss="mse")
        >>> with tf_onebit.without_delay(model):
        ...     history = model.fit(keras.ops.ones([8, 8]), keras.ops.ones([8, 1]), verbose=0)
    """
    flush(model_or_optimizer)
    exchanges = [optimizer.gradient_exchange for optimizer in _distributed(model_or_optimizer)]
    earlier = [exchange.delays for exchange in exchanges]
    for exchange in exchanges:
        exchange.set_delay(False)
    try:
        yield
    finally:
        for exchange, delays in zip(exchanges, earlier, strict=True):
            exchange.set_delay(delays)


def flush_where_shown(model):
    """Has a model in training flush before it shows what it has learned, for good."""

    @contextlib.contextmanager
    def flushed():
        flush(model)
        yield

    show_in(model, flushed, (*SHOWING, _END_OF_EPOCH))


def batch_size_dependents(model):
    """Finds what of a model depends on the batch size: list of (object, steps of an update).

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


def require_no_xla(model):
    """Raises ValueError for a model whose steps Keras has XLA compile."""
    if model.jit_compile:
        raise ValueError(
            "XLA cannot compile the exchange of gradients. Received: a model compiled with "
            "jit_compile=True, which Keras chooses by itself where there is a GPU. Compile it with "
            "jit_compile=False."
        )


def model_in_training(optimizer):
    """The model whose `train_step` calls for an update by an optimizer, or None."""

    def trains(owner):
        return isinstance(owner, keras.Model) and optimizer in _distributed(owner)

    frame = calling_method("train_step", trains)
    return None if frame is None else frame.f_locals["self"]


def _distributed(model_or_optimizer):
    if isinstance(model_or_optimizer, keras.optimizers.Optimizer):
        optimizer = inner_optimizer(model_or_optimizer)
        if not isinstance(optimizer, Distributed):
            raise ValueError(
                "The optimizer must be one that exchanges gradients. Received: "
                f"{model_or_optimizer!r} of type {type(optimizer).__name__}. Pass what "
                "tf_onebit.horovod.DistributedOptimizer returns, or an optimizer that was made in "
                "the scope of a tf_onebit strategy."
            )
        return [optimizer]
    inner = map(inner_optimizer, optimizers_of(model_or_optimizer))
    return [optimizer for optimizer in inner if isinstance(optimizer, Distributed)]
