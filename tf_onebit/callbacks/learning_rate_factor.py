"""A factor on the learning rate of a Keras optimizer, whatever that is and whoever sets it.

The factor acts within the update of a step, on a variable and on a schedule alike. Outside of it
`optimizer.learning_rate` is the optimizer's own, as ever: other callbacks (`ReduceLROnPlateau`,
`LearningRateScheduler`) read and set it, and saved models have it, without the factor.
"""

import keras
import tensorflow as tf

from tf_onebit.callbacks import fit
from tf_onebit.training.model_optimizers import inner_optimizer, optimizers_of
from tf_onebit.training.optimizer import subclass

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


class _Scaled:
    """Multiplies the learning rate with a factor, within updates.

    A mixin for classes of Keras optimizers.
    """

    def apply(self, grads, trainable_variables=None):
        self._updates_under_way += 1  # replicas have threads of their own
        try:
            return super().apply(grads, trainable_variables)
        finally:
            self._updates_under_way -= 1

    def _get_current_learning_rate(self):
        learning_rate = super()._get_current_learning_rate()
        if tf.executing_eagerly() and not self._updates_under_way:
            return learning_rate
        learning_rate = tf.convert_to_tensor(learning_rate)
        return learning_rate * tf.cast(self.learning_rate_factor, learning_rate.dtype)


def scaled_optimizers(model):
    """The optimizers of a model, each with a factor on its learning rate: 1 until it is set."""
    optimizers = list(map(inner_optimizer, optimizers_of(model)))
    new = [optimizer for optimizer in optimizers if not isinstance(optimizer, _Scaled)]
    for optimizer in new:
        optimizer.__class__ = subclass(type(optimizer), _Scaled)
        optimizer._updates_under_way = 0
        with tf.init_scope():
            optimizer.learning_rate_factor = tf.Variable(1.0, trainable=False)
        if (exchange := getattr(optimizer, "gradient_exchange", None)) is not None:
            exchange.flushing.clear()  # which have been traced without it
    if new:
        fit.trace_anew(model)
    return optimizers


def factors(model):
    """The factors of a model's optimizers: list of floats."""
    return [float(optimizer.learning_rate_factor) for optimizer in scaled_optimizers(model)]


def set_factors(model, values):
    """Sets the factors of a model's optimizers."""
    for optimizer, value in zip(scaled_optimizers(model), values, strict=True):
        optimizer.learning_rate_factor.assign(value)


def own_learning_rate(model):
    """What the first optimizer of a model has by itself, without the factor: float."""
    return float(keras.ops.convert_to_numpy(scaled_optimizers(model)[0].learning_rate))


def learning_rate(model):
    """The learning rate of a model's next step, by its first optimizer: float."""
    return own_learning_rate(model) * factors(model)[0]
