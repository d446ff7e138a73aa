"""The Monitor callback, as far as one worker shows it."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.util import event_pb2

import tf_onebit
import tf_onebit.horovod as hvd
from tf_onebit.callbacks import Monitor

LOGS = ["bytes_sent", "compression_ratio", "residual_norm"]
BATCHES = 6


@pytest.fixture(autouse=True, scope="module")
def one_worker():
    hvd.init()


def fit(monitor, optimizer=None, epochs=1, callbacks=(), steps_per_execution=1):
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(2)])
    if optimizer is None:
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), tf_onebit.OneBit())
    model.compile(optimizer, loss="mse", steps_per_execution=steps_per_execution)
    x, y = np.ones([BATCHES, 4]), np.ones([BATCHES, 2])
    return model.fit(x, y, batch_size=1, epochs=epochs, callbacks=[monitor, *callbacks], verbose=0)


class BatchLogs(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.batches = []

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append(dict(logs))


def test_epoch_logs_have_what_was_sent():
    history = fit(Monitor(), epochs=2).history
    assert {name: history[name] for name in LOGS} == {
        "bytes_sent": [0.0, 0.0],
        "compression_ratio": [1.0, 1.0],
        "residual_norm": [0.0, 0.0],
    }


def test_batch_logs_have_what_was_sent():
    seen = BatchLogs()
    fit(Monitor(update_freq=2), callbacks=[seen])
    assert len(seen.batches) == BATCHES
    assert all(set(LOGS) <= logs.keys() for logs in seen.batches)


def scalars_in(folder):
    """(step, name, value) of all scalars in a folder of TensorBoard."""
    scalars = []
    for file in folder.iterdir():
        for record in tf.data.TFRecordDataset(str(file)):
            event = event_pb2.Event.FromString(record.numpy())
            for value in event.summary.value:
                scalars.append((event.step, value.tag, float(tf.make_ndarray(value.tensor))))
    return sorted(scalars)


@pytest.mark.parametrize(
    ("update_freq", "steps_per_execution", "steps"),
    [
        (1, 1, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
        (2, 1, [1, 3, 5, 7, 9, 11]),
        (9, 1, [1, 7]),
        (1, 2, [2, 4, 6, 8, 10, 12]),
        (4, 2, [2, 6, 8, 12]),
        (5, 3, [3, 9]),
    ],
)
def test_tensorboard_gets_a_scalar_every_so_many_batches_of_an_epoch(
    tmp_path, update_freq, steps_per_execution, steps
):
    monitor = Monitor(update_freq, log_dir=tmp_path)
    fit(monitor, epochs=2, steps_per_execution=steps_per_execution)
    values = {"bytes_sent": 0.0, "compression_ratio": 1.0, "residual_norm": 0.0}
    expected = [(step, f"exchange/{name}", values[name]) for step in steps for name in LOGS]
    assert scalars_in(tmp_path) == expected


def test_nothing_is_written_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fit(Monitor(update_freq=1))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("update_freq", [0, -1])
def test_an_update_freq_that_is_not_positive_is_refused(update_freq):
    message = f"update_freq must be a positive number of batches. .*update_freq={update_freq}"
    with pytest.raises(ValueError, match=message):
        Monitor(update_freq)


def test_an_optimizer_that_exchanges_nothing_is_refused():
    message = "Monitor needs an optimizer that exchanges gradients.*Compile the model in"
    with pytest.raises(ValueError, match=message):
        fit(Monitor(), optimizer=keras.optimizers.SGD(0.1))
