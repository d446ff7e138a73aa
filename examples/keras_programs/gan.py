"""Trains a GAN to draw a disc somewhere in a small image."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(1)
size, latent_dim = 8, 16


def make_images(count):
    y, x = np.mgrid[:size, :size]
    rng = np.random.default_rng(1)
    centers = rng.uniform(2, size - 3, [2, count, 1, 1])
    distances = np.hypot(y - centers[0], x - centers[1])
    return 1 / (1 + np.exp(3 * (distances - 2)))[..., None].astype("float32")


images = make_images(1280)
dataset = tf.data.Dataset.from_tensor_slices(images[:1024])
dataset = dataset.shuffle(1024).batch(64)


def make_discriminator():
    return keras.Sequential(
        [
            keras.Input([size, size, 1]),
            layers.Conv2D(16, 3, strides=2, padding="same", activation="relu"),
            layers.Conv2D(32, 3, strides=2, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )


def make_generator():
    return keras.Sequential(
        [
            keras.Input([latent_dim]),
            layers.Dense(4 * 4 * 32, activation="relu"),
            layers.Reshape([4, 4, 32]),
            layers.Conv2DTranspose(16, 4, strides=2, padding="same", activation="relu"),
            layers.Conv2D(1, 3, padding="same", activation="sigmoid"),
        ]
    )


class GAN(keras.Model):
    def __init__(self, discriminator, generator):
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator
        self.seed_generator = keras.random.SeedGenerator()

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_fn = loss_fn
        self.d_loss = keras.metrics.Mean(name="d_loss")
        self.g_loss = keras.metrics.Mean(name="g_loss")

    @property
    def metrics(self):
        return [self.d_loss, self.g_loss]

    def noise(self, count):
        return keras.random.normal([count, latent_dim], seed=self.seed_generator)

    def train_step(self, real_images):
        count = ops.shape(real_images)[0]
        mixed = ops.concatenate([self.generator(self.noise(count)), real_images])
        is_fake = ops.concatenate([ops.ones([count, 1]), ops.zeros([count, 1])])
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(is_fake, self.discriminator(mixed))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply(tape.gradient(d_loss, weights), weights)

        with tf.GradientTape() as tape:
            predictions = self.discriminator(self.generator(self.noise(count)))
            g_loss = self.loss_fn(ops.zeros([count, 1]), predictions)
        weights = self.generator.trainable_weights
        self.g_optimizer.apply(tape.gradient(g_loss, weights), weights)
        self.d_loss.update_state(d_loss)
        self.g_loss.update_state(g_loss)
        return {metric.name: metric.result() for metric in self.metrics}


d_optimizer, g_optimizer = keras.optimizers.Adam(0.002, 0.5), keras.optimizers.Adam(0.002, 0.5)
model = GAN(make_discriminator(), make_generator())
model.compile(d_optimizer, g_optimizer, keras.losses.BinaryCrossentropy(from_logits=True))
model.fit(
    dataset,
    epochs=16,
    verbose=2,
)
drawn = model.generator(keras.random.normal([512, latent_dim], seed=2))
distances = ((images[1024:, None] - ops.convert_to_numpy(drawn)) ** 2).mean((2, 3, 4)).min(1)
print(f"held-out distance: {distances.mean():.4f}")
