"""The `model.fit` that calls a callback, and what is done to its training step."""

import tensorflow as tf

from tf_onebit.framework_internals.keras_calls import find_fit
from tf_onebit.framework_internals.keras_models import build_from
from tf_onebit.training.model_optimizers import is_built


def calling_fit(model):
    """The `FitCall` of the `model.fit` that calls.

    Raises:
        RuntimeError: if there is none.
    """
    fit = find_fit(model)
    if fit is None:
        raise RuntimeError("Callbacks of tf_onebit work in model.fit only.")
    return fit


def build_model(model, purpose):
    """Gives a model the variables that Keras gives it in the first step.

    Args:
        model: Keras model.
        purpose: what it is to have them for, as "is resumed".

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
            f"A model that {purpose} must have its variables. Received: {model!r}, which cannot "
            "be built from its data. Build its layers before fit."
        ) from error


def traced_step(model):
    """Traces the training step of the calling `fit`, which it then need not do again.

    Nothing is computed, and no data are drawn. What the step makes in its first trace, as the
    variables of optimizers, is there after it.

    Returns:
        A concrete function of a batch.
    """
    spec = calling_fit(model).batch_spec
    step = getattr(model.train_function, "stands_in_for", model.train_function)
    function = tf.function(lambda batch: step([batch]), autograph=False)
    return function.get_concrete_function(spec)


def trace_anew(model):
    """Has the training step traced again, as something in it has changed."""
    function = model.train_function
    if function is None:
        return
    model.make_train_function(force=True)
    if hasattr(function, "stands_in_for"):
        begin_replay(model, function)


def begin_replay(model, draw):
    """Has `draw` called in the place of steps, until `end_replay`."""
    draw.stands_in_for = model.train_function
    model.train_function = draw


def end_replay(model):
    function = model.train_function
    model.train_function = getattr(function, "stands_in_for", function)


def is_replaying(model):
    """Whether batches are drawn without being trained on."""
    return hasattr(model.train_function, "stands_in_for")
