"""Learning rates of Keras optimizers, multiplied by a factor within updates."""

import math

import tensorflow as tf

from tf_onebit._framework_internals.tf_variables import first_copy


class ScaledLearningRate:
    """Mixin for Keras optimizers that multiplies the learning rate by a factor within updates.

    A copy made from the configuration of such an optimizer also has this class, but no factor.
    """

    _updates_under_way = 0
    scaling = None

    def _backend_apply_gradients(self, grads, trainable_variables):
        self._updates_under_way += 1  # replicas have threads of their own
        try:
            super()._backend_apply_gradients(grads, trainable_variables)
        finally:
            self._updates_under_way -= 1

    def _get_current_learning_rate(self):
        learning_rate = super()._get_current_learning_rate()
        if self.scaling is None or (tf.executing_eagerly() and not self._updates_under_way):
            return learning_rate
        learning_rate = tf.convert_to_tensor(learning_rate)
        return learning_rate * tf.cast(self.scaling.factor, learning_rate.dtype)


class LearningRateFactor:
    """Factor on the learning rate of an optimizer.

    Keras and TensorFlow do not track this object, so the factor is not saved with the optimizer.

    Attributes:
        factor: variable with the product of all factors, which steps read.
        factor_of: dictionary from callbacks to their factors.
        ended: list of callbacks that have ended.
    """

    def __init__(self):
        with tf.init_scope():
            self.factor = tf.Variable(1.0, trainable=False)
        self.factor_of, self.ended = {}, []

    def update(self):
        self.factor.assign(math.prod(self.factor_of.values()))


def learning_rate_of(optimizer):
    """Returns the learning rate of an optimizer's next step, with the factor: float."""
    scaling = getattr(optimizer, "scaling", None)
    return own_learning_rate_of(optimizer) * (1.0 if scaling is None else float(scaling.factor))


def own_learning_rate_of(optimizer):
    """Returns the learning rate of an optimizer without the factor: float."""
    return float(first_copy(optimizer.learning_rate))
