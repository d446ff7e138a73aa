"""Optimizers of a model, and the gradients that they have under way."""

import contextlib
from collections.abc import Iterator

import keras

from tf_onebit._framework_internals.keras_calls import model_in_train_step
from tf_onebit._framework_internals.keras_models import (
    END_OF_EPOCH,
    SHOWING,
    layers_of,
    wrap_methods,
)
from tf_onebit._training.optimizer import Distributed


def optimizers_of(model):
    """Returns the Keras optimizers of a model: the compiled one, and others in its attributes."""
    held = [getattr(model, "optimizer", None)]
    for value in vars(model).values():
        if isinstance(value, dict):
            value = list(value.values())
        held += value if isinstance(value, (list, tuple)) else [value]
    optimizers = {id(v): v for v in held if isinstance(v, keras.optimizers.Optimizer)}
    return list(optimizers.values())


def gradient_exchanges_of(model):
    """Returns the list of the `GradientExchange` of a model's optimizers, without duplicates."""
    found = [getattr(o, "gradient_exchange", None) for o in optimizers_of(model)]
    return list({id(exchange): exchange for exchange in found if exchange is not None}.values())


def is_built(model):
    """Tells whether a model has its variables.

    A GAN has no `call`, and so is never built itself. Its variables are in its inner models.
    """
    layers = [layer for layer in layers_of(model) if layer is not model]
    return all(layer.built for layer in layers or [model])


def inner_optimizer(optimizer):
    """Returns the optimizer that updates weights, also from within a `LossScaleOptimizer`."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def flush(model_or_optimizer: keras.Model | keras.optimizers.Optimizer) -> None:
    """Applies the gradients that are under way with `Delayed`, from the last steps.

    Each is an ordinary update, with momentum, clipping, decay and a count of iterations. Without
    delay, or with no gradients under way, it changes nothing. All workers call it after the same
    step. `fit` calls it by itself, as `tf_onebit.Delayed` says. A training loop of your own calls
    it before it reads the weights, and at its end.

    Args:
        model_or_optimizer: Keras model with compiled or other optimizers, or the optimizer of a
            training loop of your own.

    Raises:
        InvalidArgumentError: on all workers, if a gradient of any worker was not finite.
        ValueError: if the optimizer exchanges no gradients.

    Example:
        >>> import tf_onebit
        >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", loss="mse")
        >>> tf_onebit.flush(model)
    """
    for optimizer in _distributed(model_or_optimizer):
        optimizer.flush()


@contextlib.contextmanager
def without_delay(
    model_or_optimizer: keras.Model | keras.optimizers.Optimizer,
) -> Iterator[None]:
    """Makes steps apply their own gradients within a context, also with `Delayed`.

    The context begins with a `flush`. All workers enter it after the same step.

    Args:
        model_or_optimizer: see `flush`.

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
    """Makes a model flush before it is evaluated, used or saved, and at the end of each epoch."""

    @contextlib.contextmanager
    def flushed():
        flush(model)
        yield

    wrap_methods(model, flushed, (*SHOWING, END_OF_EPOCH))


def batch_size_dependents(model):
    """Finds the optimizers and exchanges of a model that depend on the batch size.

    Each has `global_batch_size` and `set_global_batch_size`, which count samples per update.

    Returns:
        List of (object, number of steps per update).
    """
    known = []
    for optimizer in map(inner_optimizer, optimizers_of(model)):
        steps = optimizer.gradient_accumulation_steps or 1
        for owner in (optimizer, getattr(optimizer, "gradient_exchange", None)):
            if hasattr(owner, "set_global_batch_size"):
                known.append((owner, steps))
    return known


def require_no_xla(model):
    """Raises ValueError for a model whose steps XLA compiles."""
    if model.jit_compile:
        raise ValueError(
            "XLA cannot compile the exchange of gradients. Received: a model compiled with "
            "jit_compile=True, which Keras may choose itself on a GPU. Compile it with "
            "jit_compile=False."
        )


def model_in_training(optimizer):
    """Returns the model whose `train_step` has called an optimizer's update, or None."""

    def trains(owner):
        return isinstance(owner, keras.Model) and optimizer in _distributed(owner)

    return model_in_train_step(trains)


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
