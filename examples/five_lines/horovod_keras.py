"""Trains on handwritten digits with Keras' fit and Horovod, as written for Keras 2."""

import horovod.tensorflow.keras as hvd
import keras
from sklearn.datasets import load_digits

hvd.init()
keras.utils.set_random_seed(1)
images, digits = load_digits(return_X_y=True)
held_out = images[1440:], digits[1440:]
images, digits = images[hvd.rank() : 1440 : hvd.size()], digits[hvd.rank() : 1440 : hvd.size()]

model = keras.Sequential(
    [
        keras.Input((64,)),
        keras.layers.Rescaling(1 / 16),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dense(10),
    ]
)
optimizer = keras.optimizers.SGD(0.2)
optimizer = hvd.DistributedOptimizer(optimizer)
model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
model.fit(images, digits, batch_size=32, epochs=3, callbacks=callbacks, verbose=0)
print(f"held-out loss: {model.evaluate(*held_out, verbose=0):.6f}")
