"""Preparations that a strategy makes before the first step of a `fit`.

At the beginning of a `fit` Keras enters only the scope of the strategy, in which it builds the
model. The calling frames tell which model that is.
"""

import contextlib

import keras

from tf_onebit._framework_internals.keras_calls import model_being_built
from tf_onebit._framework_internals.keras_models import replace_next_build
from tf_onebit._training.passes import follow
from tf_onebit.distribute.callback_files import write_apart

_STEPS = ("train_step", "test_step", "predict_step")


def prepare(engine):
    """Prepares the `fit`, `evaluate` or `predict` that is about to build a model, if there is one.

    Args:
        engine: `Engine` of the strategy whose scope Keras enters.
    """
    model, fit = model_being_built()
    if model is None:
        return
    _build_as_in_one_process(model)
    if fit is not None and len(engine.ranks) < engine.world_size:
        follow(fit.epoch_iterator, engine.whereabouts)
        write_apart(fit.callbacks, engine)


def _build_as_in_one_process(model):
    """Lets a model with steps of its own train even if Keras cannot build it.

    Without a strategy Keras builds no model before its first step. Under a strategy it builds the
    model by `call`, which a GAN, for example, neither has nor needs.
    """
    if all(_is_of_keras(model, step) for step in _STEPS):
        return

    def build_if_possible(build):
        if not _is_of_keras(model, "call"):
            # The first step makes the missing variables, or fails with an error of its own.
            with contextlib.suppress(Exception):
                build()

    replace_next_build(model, build_if_possible)


def _is_of_keras(model, method):
    return getattr(type(model), method) is getattr(keras.Model, method)
