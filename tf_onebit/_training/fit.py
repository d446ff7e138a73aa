"""The `model.fit` that calls a callback: its training step, and replays of its batches."""

import tensorflow as tf

from tf_onebit._framework_internals.keras_calls import find_fit
from tf_onebit._framework_internals.keras_models import build_from
from tf_onebit._training.model_optimizers import is_built


def calling_fit(model):
    """Returns the `FitCall` of the calling `model.fit`.

    Raises:
        RuntimeError: if the caller is not in `model.fit`.
    """
    fit = find_fit(model)
    if fit is None:
        raise RuntimeError("Callbacks of tf_onebit work only in model.fit.")
    return fit


def build_model(model, purpose):
    """Builds a model: creates the variables that Keras creates in the first step.

    Args:
        model: Keras model.
        purpose: end of the error's "A model that ...", such as "is resumed".

    Raises:
        ValueError: if it cannot be built from the data.
    """
    if is_built(model):
        return
    spec = calling_fit(model).batch_spec
    try:
        build_from(model, spec)
    except Exception as error:
        raise ValueError(
            f"A model that {purpose} must be built. Received: {model!r}, which Keras cannot build "
            "from its data. Build its layers before fit."
        ) from error


def traced_step(model):
    """Traces the training step of the calling `fit`, which then does not trace it again.

    It computes nothing, and draws no data. The trace creates the variables that the step creates at
    first, such as the variables of optimizers.

    Returns:
        A concrete function of a batch.
    """
    spec = calling_fit(model).batch_spec
    step = getattr(model.train_function, "stands_in_for", model.train_function)
    function = tf.function(lambda batch: step([batch]), autograph=False)
    return function.get_concrete_function(spec)


def trace_anew(model):
    """Makes Keras trace the training step again, after something in it has changed."""
    function = model.train_function
    if function is None:
        return
    model.make_train_function(force=True)
    if hasattr(function, "stands_in_for"):
        begin_replay(model, function)


def begin_replay(model, draw):
    """Makes Keras call `draw` instead of training steps, until `end_replay`."""
    draw.stands_in_for = model.train_function
    model.train_function = draw


def end_replay(model):
    function = model.train_function
    model.train_function = getattr(function, "stands_in_for", function)


def is_replaying(model):
    """Tells whether batches are drawn without training on them."""
    return hasattr(model.train_function, "stands_in_for")
