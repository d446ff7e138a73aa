"""Models with an optimizer for each part, which are compiled with neither."""

import keras
import tensorflow as tf


class TwoOptimizers(keras.Sequential):
    """A model with one optimizer for the kernel of its layer, and one for the bias."""

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


class Gan(keras.Model):
    """A GAN as in Keras' examples, with sub-models and no `call`.

    Args:
        width: number of values of a sample.
        slow: whether it keeps a slowly following copy of the generator.
        critic_steps: number of the discriminator's steps for one of the generator's.
    """

    def __init__(self, width=4, slow=False, critic_steps=1):
        super().__init__()
        self.discriminator, self.generator = _network(width, 1), _network(2, width)
        self.slow = _network(2, width) if slow else None
        self.critic_steps = critic_steps
        self.seed_generator = keras.random.SeedGenerator(5)
        self.cross_entropy = keras.losses.BinaryCrossentropy(from_logits=True)
        self.loss_tracker = keras.metrics.Mean(name="d_loss")

    def compile(self, d_optimizer, g_optimizer, **arguments):
        super().compile(**arguments)
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer

    @property
    def metrics(self):
        return [self.loss_tracker]

    def generated(self, real):
        noise = keras.random.normal([tf.shape(real)[0], 2], seed=self.seed_generator)
        return self.generator(noise)

    def train_step(self, real):
        for _ in range(self.critic_steps):
            with tf.GradientTape() as tape:
                verdicts = self.discriminator(tf.concat([real, self.generated(real)], axis=0))
                labels = tf.concat([tf.ones_like(real[:, :1]), tf.zeros_like(real[:, :1])], axis=0)
                loss = self.cross_entropy(labels, verdicts)
            self._apply(self.d_optimizer, tape, loss, self.discriminator)
        self.loss_tracker.update_state(loss)
        with tf.GradientTape() as tape:
            verdicts = self.discriminator(self.generated(real))
            loss = self.cross_entropy(tf.ones_like(verdicts), verdicts)
        self._apply(self.g_optimizer, tape, loss, self.generator)
        if self.slow is not None:
            for slow, weight in zip(self.slow.weights, self.generator.weights, strict=True):
                slow.assign(0.5 * slow + 0.5 * weight)
        return {"d_loss": self.loss_tracker.result()}

    def _apply(self, optimizer, tape, loss, part):
        variables = part.trainable_variables
        gradients = tape.gradient(loss, [v.value for v in variables])
        pairs = zip(gradients, variables, strict=True)
        optimizer.apply_gradients([pair for pair in pairs if pair[0] is not None])


def _network(inputs, outputs):
    return keras.Sequential(
        [
            keras.Input([inputs]),
            keras.layers.Dense(5),
            keras.layers.BatchNormalization(momentum=0.5),
            keras.layers.Dense(outputs),
        ]
    )
