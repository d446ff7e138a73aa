"""The reference for Adam with moments of a worker's own gradients, as `Exchange` documents it."""

import keras
import tensorflow as tf


def of_means(optimizer, world_size):
    """Returns an optimizer that does what a worker computes of its own gradients.

    Other rules than Adam's stay as they are. The optimizer must not be built yet.
    """
    cls = type(optimizer)
    if cls.update_step is keras.optimizers.Adam.update_step and not optimizer.amsgrad:
        optimizer.__class__ = type(cls.__name__, (_OfMeans, cls), {"world_size": world_size})
    return optimizer


class _OfMeans:
    """Mixin for Adam whose squares are those of the mean of the workers' gradients.

    Attributes:
        exchanged: indices of variables whose gradients are this mean already.
    """

    exchanged = ()

    def update_step(self, gradient, variable, learning_rate):
        index = self._get_variable_index(variable)
        m, v = self._momentums[index], self._velocities[index]
        gradient, m_0, v_0 = (tf.cast(x, tf.float64) for x in (gradient, m.value, v.value))
        b_1, b_2 = self.beta_1, self.beta_2
        count = getattr(self, "steps_of_moments", lambda: self.iterations)()
        t = tf.cast(count, tf.float64) + 1
        weight, weight_now = 1 - b_1 ** (t - 1), 1 - b_1**t
        noise = (1 - 1 / self.world_size) * (1 + b_1) / 2 * weight / weight_now
        if index in self.exchanged or b_1**2 >= b_2:
            noise = 0.0
        deviation = gradient - tf.math.divide_no_nan(m_0, weight)
        m_t = b_1 * m_0 + (1 - b_1) * gradient
        v_t = b_2 * v_0 + (1 - b_2) * (gradient**2 - noise * deviation**2)
        least = (1 - b_2) * (1 - b_1**2 / b_2) / (1 - b_1) ** 2
        v_t = tf.where(noise > 0, tf.maximum(v_t, least * m_t**2), v_t)
        m.assign(tf.cast(m_t, m.dtype))
        v.assign(tf.cast(v_t, v.dtype))
        rate = tf.cast(learning_rate, tf.float64) * tf.sqrt(1 - b_2**t) / weight_now
        update = -rate * m_t / (tf.sqrt(v_t) + self.epsilon)
        self.assign_add(variable, tf.cast(update, variable.dtype))
