"""A factor on the learning rate of a Keras optimizer, whatever that is and whoever sets it.

The factor acts within the update of a step, on a variable and on a schedule alike. Outside of it
`optimizer.learning_rate` is the optimizer's own, as ever: other callbacks (`ReduceLROnPlateau`,
`LearningRateScheduler`) read and set it, and saved models have it, without the factor.

It is the product of what callbacks of a `fit` set, each its own, and is 1 outside of `fit`: from
`begin` to `end` of each. Those keep what they have set, to begin the next `fit` with.
"""

import itertools

import tensorflow as tf

from tf_onebit.framework_internals.keras_optimizers import accumulated_gradients_of, mix_in
from tf_onebit.framework_internals.tf_variables import copies_of
from tf_onebit.optimizers import NormalizedAdaGrad
from tf_onebit.training import fit
from tf_onebit.training.model_optimizers import inner_optimizer, optimizers_of
from tf_onebit.training.optimizer import Distributed
from tf_onebit.training.scaled_learning_rate import (
    LearningRateFactor,
    ScaledLearningRate,
    learning_rate_of,
    own_learning_rate_of,
)

# By what power of the minibatch size an optimizer's learning rate grows, by the names that it and
# the classes it is derived from have. In Keras a gradient is the mean over a minibatch. Plain
# updates stay the same, per sample, if the rate grows with the size. Updates that are divided by
# the gradient's own size grow with the square root: then noise adds up, per sample, to the same
# (Malladi et al. 2022).
_POWERS = {"SGD": 1.0, "NormalizedAdaGrad": 1.0} | dict.fromkeys(
    (
        *("Adam", "AdamW", "Adamax", "Nadam", "RectifiedAdam", "ScheduleFreeAdamW", "Lamb", "Lion"),
        *("RMSprop", "Adagrad", "Adadelta", "Adafactor", "Ftrl", "Muon"),
    ),
    0.5,
)
_RULES = {"linear": 1.0, "sqrt": 0.5, "constant": 0.0}


def require_rule(rule):
    """Raises ValueError unless a rule for learning rates is known."""
    if rule != "auto" and rule not in _RULES:
        raise ValueError(
            f'learning_rate_rule must be "auto", {", ".join(map(repr, _RULES))}. Received: '
            f"learning_rate_rule={rule!r}."
        )


def power_of_size(optimizer, rule):
    """By what power of the minibatch size the learning rate of an optimizer is to grow: float.

    Raises:
        ValueError: for `rule="auto"` and an optimizer that is not known.
    """
    if rule != "auto":
        return _RULES[rule]
    for cls in type(optimizer).__mro__:
        if cls.__name__ in _POWERS:
            return _POWERS[cls.__name__]
    raise ValueError(
        "How its learning rate is to follow the minibatch size is not known of every optimizer. "
        f'Received: learning_rate_rule="auto" and the optimizer {type(optimizer).__name__}. Use '
        'learning_rate_rule="linear" if it applies gradients as they are, or "sqrt" if it divides '
        "them by their size."
    )


def scaled_optimizers(model):
    """The optimizers of a model, each with a factor on its learning rate: 1 until it is set."""
    optimizers = list(map(inner_optimizer, optimizers_of(model)))
    new = [o for o in optimizers if getattr(o, "scaling", None) is None]
    for optimizer in new:
        if not isinstance(optimizer, ScaledLearningRate):
            mix_in(optimizer, ScaledLearningRate)
        optimizer.scaling = LearningRateFactor()
        if isinstance(optimizer, Distributed):
            optimizer.trace_flushes_again()  # which have been traced without it
    if new:
        fit.trace_anew(model)
    return optimizers


def begin(model, callback, values):
    """Has the factors of a callback in force until its `end`.

    Args:
        model: Keras model, whose `fit` calls.
        callback: of that `fit`.
        values: list of floats, for each of `scaled_optimizers`, or one for all.
    """
    present = fit.calling_fit(model).callbacks
    for optimizer in scaled_optimizers(model):
        scaling = optimizer.scaling
        # Others are of a `fit` that ended in an error, which callbacks are not told of.
        scaling.factor_of = {c: f for c, f in scaling.factor_of.items() if c in present}
        scaling.ended = []
    set_factors(model, callback, values)


def end(model, callback):
    """Has the factors of a callback in force no more.

    Nor those of others, as soon as all have come to their end: in whatever order that is, the
    others may still ask for the learning rate.
    """
    for optimizer in scaled_optimizers(model):
        scaling = optimizer.scaling
        scaling.ended.append(callback)
        if all(other in scaling.ended for other in scaling.factor_of):
            scaling.factor_of, scaling.ended = {}, []
            scaling.update()


def set_factors(model, callback, values):
    """Sets the factors of a callback: see `begin`."""
    optimizers = scaled_optimizers(model)
    if isinstance(values, float):
        values = [values] * len(optimizers)
    for optimizer, value in zip(optimizers, values, strict=True):
        optimizer.scaling.factor_of[callback] = value
        optimizer.scaling.update()


def rescale_pending_gradients(model, before, now):
    """Rescales gradients that are still to be applied, so that their update stays the same.

    Exchanges keep such gradients as residuals and in the velocities of transforms. Optimizers keep
    them for an update of several minibatches, or in velocities of their own. They are multiplied by
    the factor on the learning rate when they were computed, over that of now. (The velocities of
    Keras' own optimizers hold updates, with their learning rate, and stay as they are.)

    Args:
        model: Keras model.
        before, now: lists of floats, for each of `scaled_optimizers`.
    """
    for optimizer, old, new in zip(scaled_optimizers(model), before, now, strict=True):
        if old == new:
            continue
        gathered = accumulated_gradients_of(optimizer)
        if isinstance(optimizer, NormalizedAdaGrad):
            gathered += optimizer.velocities
        for copy in itertools.chain(*map(copies_of, gathered)):
            copy.assign(copy * tf.cast(old / new, copy.dtype))
        if (exchange := getattr(optimizer, "gradient_exchange", None)) is not None:
            exchange.carried.scale_unsent(old / new)


def factors(model):
    """The factors on the learning rates of a model's optimizers: list of floats."""
    return [float(optimizer.scaling.factor) for optimizer in scaled_optimizers(model)]


def own_learning_rate(model):
    """What the first optimizer of a model has by itself, without the factor: float."""
    return own_learning_rate_of(_first_optimizer(model))


def learning_rate(model):
    """The learning rate of a model's next step, by its first optimizer: float."""
    return learning_rate_of(_first_optimizer(model))


def _first_optimizer(model):
    return inner_optimizer(optimizers_of(model)[0])
