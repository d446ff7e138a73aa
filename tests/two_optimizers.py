"""A model as a GAN is one: with an optimizer for each part, and compiled with neither."""

import keras
import tensorflow as tf


class TwoOptimizers(keras.Sequential):
    """One optimizer for the kernel of its layer, and one for the bias."""

    def compile(self, *optimizers):
        super().compile()
        self.optimizers = list(optimizers)

    def train_step(self, data):
        x, y = data
        for optimizer, variable in zip(self.optimizers, self.trainable_variables, strict=True):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x) - y) ** 2)
            optimizer.apply_gradients([(tape.gradient(loss, variable.value), variable)])
        return {"loss": loss}
