"""Effects of an optimizer and a model on the methods of a plan, and notes on them."""

import dataclasses

import keras

from tf_onebit._bmuf.variables import corrects_moments_of
from tf_onebit._training.model_optimizers import inner_optimizer
from tf_onebit.collectives.requests import all_reduce_bytes
from tf_onebit.exchanges.base import FLOAT_BYTES
from tf_onebit.planner import Bucket, Collective


def checks_gradients_first(optimizer):
    """Tells whether workers check all of their gradients before they exchange any."""
    skips = getattr(inner_optimizer(optimizer), "on_nonfinite", None) == "skip"
    return skips or isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def as_computed(computation, optimizer):
    """Returns the `planner.Computation` of workers, which may check all gradients first."""
    return computation.without_overlap() if checks_gradients_first(optimizer) else computation


def as_exchanged(methods, world_size, optimizer):
    """Returns the methods of workers, which may check all gradients before they exchange any.

    Then no gradient is delayed. In each step, workers exchange a flag before all else.

    Args:
        methods: list of `planner.Method`.
        world_size: number of workers that exchange.
        optimizer: Keras optimizer.
    """
    if not checks_gradients_first(optimizer):
        return methods
    flag = Collective(0.0, "all_reduce", all_reduce_bytes(FLOAT_BYTES, world_size))
    return [
        dataclasses.replace(method, delay=0, buckets=[Bucket(0, (flag,)), *method.buckets])
        if method.sync_period is None
        else method
        for method in methods
    ]


def with_notes(advice, method, model):
    """Returns an `Advice` with notes on its method for a model."""
    sentences = advice.sentences + notes_on(method, model)
    return dataclasses.replace(advice, sentences=sentences)


def notes_on(method, model):
    """Returns notes on a method for this model: list of sentences.

    Args:
        method: `planner.Method`.
        model: Keras model, compiled.
    """
    inner = inner_optimizer(model.optimizer)
    notes, exchanges_gradients = [], method.sync_period is None
    if model.jit_compile and exchanges_gradients:
        notes.append(
            "XLA cannot compile an exchange of gradients. Compile the model with "
            "jit_compile=False, as this plan assumes."
        )
    if checks_gradients_first(model.optimizer) and exchanges_gradients:
        notes.append(
            "Gradients are checked before they are exchanged, because the loss is scaled or "
            'on_nonfinite="skip" is set. So no exchange overlaps with the backward pass.'
        )
    if inner.gradient_accumulation_steps:
        notes.append(
            "This plan is for steps that exchange gradients. The optimizer accumulates the "
            f"gradients of {inner.gradient_accumulation_steps} steps before it exchanges them. "
            "Multiply --per-replica-batch-size by that number and plan again."
        )
    if exchanges_gradients or method.takes_turns or corrects_moments_of(inner):
        return notes
    name = type(inner).__name__
    instead = 'moment_correction="average"'
    if isinstance(inner, keras.optimizers.Adam | keras.optimizers.Nadam):
        instead = f"tf_onebit.optimizers.{name}, which takes the same arguments, or {instead}"
    notes.append(f"BlockMomentum does not correct the moments of {name}. Use {instead}.")
    return notes
