"""Trains an LSTM to forecast the temperature in six hours from half a day of weather."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(1)
past, future = 12, 6  # hours
batch_size = 64


def make_weather(hours):
    """Returns hourly temperature, pressure and wind, with daily and weekly cycles and noise."""
    rng = np.random.default_rng(1)
    hour = np.arange(hours)
    pressure = np.sin(2 * np.pi * hour / 170) + 0.1 * rng.standard_normal(hours)
    wind = np.abs(rng.standard_normal(hours))
    temperature = 15 + 5 * np.sin(2 * np.pi * hour / 24) + 4 * np.roll(pressure, 6)
    temperature += 0.5 * rng.standard_normal(hours)
    return np.stack([temperature, pressure, wind], axis=1)


features = make_weather(2800)
split = 2100
features = (features - features[:split].mean(axis=0)) / features[:split].std(axis=0)


def make_dataset(data):
    targets = data[past + future - 1 :, 0]
    return keras.utils.timeseries_dataset_from_array(
        data, targets, sequence_length=past, batch_size=batch_size, shuffle=True
    )


dataset_train = make_dataset(features[:split])
dataset_val = make_dataset(features[split:])


def make_model():
    inputs = keras.Input([past, features.shape[1]])
    return keras.Model(inputs, layers.Dense(1)(layers.LSTM(24)(inputs)))


model = make_model()
model.compile(keras.optimizers.Adam(0.003), "mse")
path_checkpoint = "forecast.weights.h5"
es_callback = keras.callbacks.EarlyStopping("val_loss", patience=2)
modelckpt_callback = keras.callbacks.ModelCheckpoint(
    path_checkpoint, "val_loss", save_weights_only=True, save_best_only=True
)
model.fit(
    dataset_train,
    epochs=5,
    validation_data=dataset_val,
    callbacks=[es_callback, modelckpt_callback],
    verbose=2,
)
model.load_weights(path_checkpoint)
print(f"held-out loss: {model.evaluate(dataset_val, verbose=0):.4f}")
