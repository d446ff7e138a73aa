"""Trains a ConvMixer to classify stripes, checks and rings in small, noisy images."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(1)
size, classes, batch_size = 12, 4, 32


def make_images(count, rng):
    """Returns images of waves along y, along x, along both, or around a center, and classes."""
    labels = rng.integers(0, classes, count)
    y, x = np.mgrid[:size, :size][:, None] + rng.uniform(-6, 0, [2, count, 1, 1])
    waves = np.stack([np.sin(2 * y), np.sin(2 * x), np.sin(2 * x) * np.sin(2 * y)])
    waves = np.concatenate([waves, np.sin(2 * np.hypot(x, y))[None]])[labels, np.arange(count)]
    colors = rng.uniform(0.2, 1, [count, 1, 1, 3])
    images = 128 + 60 * waves[..., None] * colors + 40 * rng.standard_normal([count, size, size, 3])
    return images.clip(0, 255).astype("uint8"), labels


augmentation = keras.Sequential([layers.RandomFlip("horizontal")])


def make_dataset(images, labels, is_train=False):
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    if is_train:
        dataset = dataset.shuffle(len(images))
    dataset = dataset.batch(batch_size)
    if is_train:
        dataset = dataset.map(lambda x, y: (augmentation(x), y), tf.data.AUTOTUNE)
    return dataset.prefetch(tf.data.AUTOTUNE)


images, labels = make_images(2000, np.random.default_rng(1))
train_dataset = make_dataset(images[:1280], labels[:1280], is_train=True)
val_dataset = make_dataset(images[1280:1600], labels[1280:1600])
test_dataset = make_dataset(images[1600:], labels[1600:])


def activation_block(x):
    return layers.BatchNormalization(momentum=0.9)(layers.Activation("gelu")(x))


def conv_mixer_block(x, filters, kernel_size):
    mixed = layers.DepthwiseConv2D(kernel_size, padding="same")(x)
    x = layers.Add()([activation_block(mixed), x])
    return activation_block(layers.Conv2D(filters, 1)(x))


def make_conv_mixer(filters=32, depth=2, kernel_size=3, patch_size=2):
    inputs = keras.Input([size, size, 3])
    x = layers.Rescaling(1 / 255)(inputs)
    x = activation_block(layers.Conv2D(filters, patch_size, strides=patch_size)(x))
    for _ in range(depth):
        x = conv_mixer_block(x, filters, kernel_size)
    x = layers.GlobalAvgPool2D()(x)
    return keras.Model(inputs, layers.Dense(classes, activation="softmax")(x))


loss = "sparse_categorical_crossentropy"
model = make_conv_mixer()
optimizer = keras.optimizers.AdamW(0.003, weight_decay=0.0001)
model.compile(optimizer, loss, metrics=["accuracy"])
checkpoint_path = "images.weights.h5"
checkpoint = keras.callbacks.ModelCheckpoint(
    checkpoint_path, "val_accuracy", save_best_only=True, save_weights_only=True
)
model.fit(
    train_dataset,
    validation_data=val_dataset,
    epochs=4,
    callbacks=[checkpoint],
    verbose=2,
)
model.load_weights(checkpoint_path)
print(f"held-out accuracy: {model.evaluate(test_dataset, verbose=0)[1]:.4f}")
