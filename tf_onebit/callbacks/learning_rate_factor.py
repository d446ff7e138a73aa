"""A factor on the learning rate of a Keras optimizer, for a number or a schedule alike.

The factor acts only within the update of a step. Outside of it `optimizer.learning_rate` excludes
the factor. Other callbacks (`ReduceLROnPlateau`, `LearningRateScheduler`) read and set that value,
and saved models contain it.

The factor is the product of the callbacks' own factors. A callback's factor is in force from its
`begin` until all callbacks have called `end`, so the product is 1 outside of `fit`. Callbacks
remember their factors, and begin the next `fit` with them.
"""

import itertools

import tensorflow as tf

from tf_onebit._framework_internals.keras_optimizers import accumulated_gradients_of, mix_in
from tf_onebit._framework_internals.tf_variables import copies_of
from tf_onebit._training import fit
from tf_onebit._training.model_optimizers import inner_optimizer, optimizers_of
from tf_onebit._training.optimizer import Distributed
from tf_onebit._training.scaled_learning_rate import (
    LearningRateFactor,
    ScaledLearningRate,
    learning_rate_of,
    own_learning_rate_of,
)
from tf_onebit.optimizers import NormalizedAdaGrad

# The power of the minibatch size with which an optimizer's learning rate grows, by the name of its
# class or a base class. In Keras a gradient is the mean over a minibatch. Plain updates stay the
# same per sample if the rate is proportional to the size. Updates that are divided by the
# gradient's own size need the square root, so that noise per sample stays the same (Malladi et al.
# 2022).
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
    """Returns the power of the minibatch size that an optimizer's learning rate follows: float.

    Raises:
        ValueError: for `rule="auto"` and an optimizer that is not known.
    """
    if rule != "auto":
        return _RULES[rule]
    for cls in type(optimizer).__mro__:
        if cls.__name__ in _POWERS:
            return _POWERS[cls.__name__]
    raise ValueError(
        'No learning rate rule is known for this optimizer. Received: learning_rate_rule="auto" '
        f'and the optimizer {type(optimizer).__name__}. Use learning_rate_rule="linear" if it '
        'applies gradients unscaled, or "sqrt" if it divides them by their size.'
    )


def scaled_optimizers(model):
    """Returns the optimizers of a model, each with a factor on its learning rate: 1 at first."""
    optimizers = list(map(inner_optimizer, optimizers_of(model)))
    new = [o for o in optimizers if getattr(o, "scaling", None) is None]
    for optimizer in new:
        if not isinstance(optimizer, ScaledLearningRate):
            mix_in(optimizer, ScaledLearningRate)
        optimizer.scaling = LearningRateFactor()
        if isinstance(optimizer, Distributed):
            optimizer.trace_flushes_again()  # they have been traced without the factor
    if new:
        fit.trace_anew(model)
    return optimizers


def begin(model, callback, values):
    """Puts the factors of a callback in force until its `end`.

    Args:
        model: Keras model whose `fit` is running.
        callback: a callback of that `fit`.
        values: list of floats, for each of `scaled_optimizers`, or one float for all.
    """
    present = fit.calling_fit(model).callbacks
    for optimizer in scaled_optimizers(model):
        scaling = optimizer.scaling
        # Other factors are left from a `fit` that ended in an error: callbacks are not told.
        scaling.factor_of = {c: f for c, f in scaling.factor_of.items() if c in present}
        scaling.ended = []
    set_factors(model, callback, values)


def end(model, callback):
    """Ends the factors of a callback.

    They stay in force until all callbacks have called this, in any order, because the others may
    still read the learning rate.
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
    """Rescales pending gradients by `before / now`, which leaves their later updates the same.

    Exchanges keep pending gradients as residuals and in velocities of transforms. Optimizers keep
    accumulated gradients, and `NormalizedAdaGrad` velocities. The velocities of Keras' own
    optimizers already contain the learning rate, so they are not changed.

    Args:
        model: Keras model.
        before, now: factors on the learning rates when the gradients were computed, and now: lists
            of floats, for each of `scaled_optimizers`.
    """
    for optimizer, old, new in zip(scaled_optimizers(model), before, now, strict=True):
        if old == new:
            continue
        gathered = accumulated_gradients_of(optimizer)
        if isinstance(optimizer, NormalizedAdaGrad):
            gathered += optimizer.velocities
        for copy in itertools.chain(*map(copies_of, gathered)):
            copy.assign(copy * tf.cast(old / new, copy.dtype))
        exchange = getattr(optimizer, "gradient_exchange", None)
        # Updates have been multiplied by the learning rate already.
        if exchange is not None and not exchange.exchanges_updates:
            exchange.carried.scale_unsent(old / new)


def factors(model):
    """Returns the factors on the learning rates of a model's optimizers: list of floats."""
    return [float(optimizer.scaling.factor) for optimizer in scaled_optimizers(model)]


def own_learning_rate(model):
    """Returns the learning rate of a model's first optimizer without the factor: float."""
    return own_learning_rate_of(_first_optimizer(model))


def learning_rate(model):
    """Returns the learning rate of the next step of a model's first optimizer: float."""
    return learning_rate_of(_first_optimizer(model))


def _first_optimizer(model):
    return inner_optimizer(optimizers_of(model)[0])
