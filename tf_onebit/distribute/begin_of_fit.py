"""Preparations that a strategy makes before the first step of a `fit`.

Keras asks a strategy for nothing at the begin of a `fit` but its scope, in which it builds the
model. Who asks is found among the frames that call.
"""

import contextlib

import keras

from tf_onebit.distribute.callback_files import write_apart
from tf_onebit.training.frames import calling_method
from tf_onebit.training.passes import follow

_STEPS = ("train_step", "test_step", "predict_step")


def prepare(engine):
    """Prepares the `fit`, `evaluate` or `predict` that is about to build a model, if one is.

    Args:
        engine: `Engine` of the strategy whose scope is asked for.
    """
    frame = _building_frame()
    if frame is None:
        return
    _build_as_in_one_process(frame.f_locals["self"])
    fit = frame.f_back
    if fit.f_code.co_name == "fit" and len(engine.ranks) < engine.world_size:
        follow(fit.f_locals["epoch_iterator"], engine.whereabouts)
        write_apart(fit.f_locals["callbacks"], engine)


def _build_as_in_one_process(model):
    """Lets a model train that Keras cannot build, but whose steps are its own.

    In one process Keras builds no model before its first step. Under a strategy it builds it by
    `call`, which the model of a GAN does not have and does not need.
    """
    if all(_is_of_keras(model, step) for step in _STEPS):
        return
    build = model._symbolic_build

    def build_if_possible(*args, **kwargs):
        del model._symbolic_build
        if not _is_of_keras(model, "call"):
            # What it lacks, it gets in its first step. If that fails, the error is the step's own.
            with contextlib.suppress(Exception):
                build(*args, **kwargs)

    model._symbolic_build = build_if_possible


def _building_frame():
    return calling_method("_maybe_symbolic_build", lambda owner: isinstance(owner, keras.Model))


def _is_of_keras(model, method):
    return getattr(type(model), method) is getattr(keras.Model, method)
