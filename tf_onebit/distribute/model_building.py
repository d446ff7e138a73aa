"""How Keras gives a model its variables before its first step under a strategy."""

import contextlib

import keras

from tf_onebit.training.frames import calling_method

_STEPS = ("train_step", "test_step", "predict_step")


def is_asked_for_a_shape():
    """Whether Keras asks for the mean of a batch, to learn the shapes that it builds a model by."""
    return _model_to_build() is not None


def build_as_in_one_process():
    """Lets a model train that Keras is about to build, and cannot, but whose steps are its own.

    In one process Keras builds no model before its first step. Under a strategy it builds it by
    `call`, which the model of a GAN does not have and does not need.
    """
    model = _model_to_build()
    if model is None or all(_is_of_keras(model, step) for step in _STEPS):
        return
    build = model._symbolic_build

    def build_if_possible(*args, **kwargs):
        del model._symbolic_build
        if not _is_of_keras(model, "call"):
            # What it lacks, it gets in its first step. If that fails, the error is the step's own.
            with contextlib.suppress(Exception):
                build(*args, **kwargs)

    model._symbolic_build = build_if_possible


def _model_to_build():
    frame = calling_method("_maybe_symbolic_build", lambda owner: isinstance(owner, keras.Model))
    return None if frame is None else frame.f_locals["self"]


def _is_of_keras(model, method):
    return getattr(type(model), method) is getattr(keras.Model, method)
