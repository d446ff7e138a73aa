"""Trains on handwritten digits, in one process."""

import keras
from keras.optimizers import SGD
from sklearn.datasets import load_digits

keras.utils.set_random_seed(1)
images, digits = load_digits(return_X_y=True)
held_out = images[1440:], digits[1440:]
images, digits = images[:1440], digits[:1440]


def make_model():
    return keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Rescaling(1 / 16),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

model = make_model()
model.compile(SGD(0.2), loss)
model.fit(
    images,
    digits,
    batch_size=32,
    epochs=3,
    verbose=0,
)
print(f"held-out loss: {model.evaluate(*held_out, verbose=0):.6f}")
