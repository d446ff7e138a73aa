"""Trains on handwritten digits, on the workers of TF_CONFIG."""

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

strategy = tf.distribute.MultiWorkerMirroredStrategy()

keras.utils.set_random_seed(1)
images, digits = load_digits(return_X_y=True)
held_out = images[1440:], digits[1440:]
images, digits = images[:1440], digits[:1440]

with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Rescaling(1 / 16),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.2), loss)
model.fit(images, digits, batch_size=32, epochs=3, verbose=0)
print(f"held-out loss: {model.evaluate(*held_out, verbose=0):.6f}")
