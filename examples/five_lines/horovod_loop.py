"""Trains on handwritten digits in a custom loop, with stock Horovod."""

import horovod.tensorflow as hvd
import keras
import tensorflow as tf
from sklearn.datasets import load_digits

hvd.init()
keras.utils.set_random_seed(1)
images, digits = load_digits(return_X_y=True)
held_out = images[1440:], digits[1440:]
images, digits = images[hvd.rank() : 1440 : hvd.size()], digits[hvd.rank() : 1440 : hvd.size()]
batches = tf.data.Dataset.from_tensor_slices((images, digits))
batches = batches.shuffle(1440).batch(32, drop_remainder=True)

model = keras.Sequential(
    [
        keras.Input((64,)),
        keras.layers.Rescaling(1 / 16),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dense(10),
    ]
)
loss_function = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = keras.optimizers.SGD(0.2)
variables = [variable.value for variable in model.trainable_variables]
hvd.broadcast_variables(variables, root_rank=0)


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_function(y, model(x, training=True))
    tape = hvd.DistributedGradientTape(tape)
    optimizer.apply(tape.gradient(loss, variables), model.trainable_variables)


for _ in range(3):
    for x, y in batches:
        train_step(x, y)
print(f"held-out loss: {loss_function(held_out[1], model(held_out[0])):.6f}")
