"""Learning rates of Keras optimizers that are multiplied by a factor within updates."""

import math

import tensorflow as tf

from tf_onebit.training.copies import first_copy


class ScaledLearningRate:
    """Multiplies the learning rate with a factor, within updates.

    A mixin for classes of Keras optimizers. One that is made from the configuration of another has
    this class, too, and no factor as yet.
    """

    _updates_under_way = 0
    _scaling = None

    def _backend_apply_gradients(self, grads, trainable_variables):
        self._updates_under_way += 1  # replicas have threads of their own
        try:
            super()._backend_apply_gradients(grads, trainable_variables)
        finally:
            self._updates_under_way -= 1

    def _get_current_learning_rate(self):
        learning_rate = super()._get_current_learning_rate()
        if self._scaling is None or (tf.executing_eagerly() and not self._updates_under_way):
            return learning_rate
        learning_rate = tf.convert_to_tensor(learning_rate)
        return learning_rate * tf.cast(self._scaling.factor, learning_rate.dtype)


class LearningRateFactor:
    """The factor on the learning rate of an optimizer.

    An object that Keras and TensorFlow do not look into: with the optimizer no factor is saved.

    Attributes:
        factor: the product, as steps read it.
        factor_of: dictionary by callback.
        ended: list of callbacks.
    """

    def __init__(self):
        with tf.init_scope():
            self.factor = tf.Variable(1.0, trainable=False)
        self.factor_of, self.ended = {}, []

    def update(self):
        self.factor.assign(math.prod(self.factor_of.values()))


def learning_rate_of(optimizer):
    """The learning rate of an optimizer's next step, with the factor: float."""
    scaling = getattr(optimizer, "_scaling", None)
    return own_learning_rate_of(optimizer) * (1.0 if scaling is None else float(scaling.factor))


def own_learning_rate_of(optimizer):
    """What an optimizer has by itself, without the factor: float."""
    return float(first_copy(optimizer.learning_rate))
