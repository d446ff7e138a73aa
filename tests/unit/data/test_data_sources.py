"""The data that ResizableBatches reads: arrays, tf.data.Datasets and PyDatasets."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.programs import run_python
from tests.support.recording import (
    DATA,
    Between,
    NumberedBatches,
    fit,
    resizing,
    times_each,
)
from tf_onebit import ResizableBatches


@pytest.mark.parametrize("name", ["tf.data", "PyDataset"])
def test_order_of_streams_is_their_own(model, name):
    fit(model, ResizableBatches(DATA[name](), 8), epochs=2)
    assert model.samples == 2 * list(range(105))


def test_of_a_stream_is_kept_only_what_is_still_to_come(model):
    batches = ResizableBatches(DATA["tf.data"](), 10)
    kept = []
    fit(model, batches, Between(lambda steps: kept.append(batches._source._kept)))
    # The minibatch of the next step is ready or under way. It takes at most 3 batches of 7.
    assert len(kept) == 11 and len(kept[-1]) <= 3


def test_structures_and_weights_come_through():
    x = {"left": np.ones([20, 2]), "right": np.arange(20.0)[:, np.newaxis]}
    inputs = {name: keras.Input(v.shape[1:], name=name) for name, v in x.items()}
    outputs = keras.layers.Dense(1, kernel_initializer="zeros")(
        keras.layers.Concatenate()(list(inputs.values()))
    )
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.0), "mse")
    weights = np.arange(20.0)
    batches = ResizableBatches((x, np.ones([20, 1]), weights), 5)
    loss = fit(model, batches, resizing(batches, {1: 15})).history["loss"]
    assert loss == [pytest.approx(weights.mean())]
    assert batches._source.element_spec[0]["right"].dtype == tf.float32


def test_numbers_become_those_of_keras_and_others_stay():
    data = (np.zeros([4, 2], np.float64), np.zeros(4, np.int16))
    x, labels = ResizableBatches(data, 2).example()
    assert (x.dtype, labels.dtype) == (tf.float32, tf.int16)


def test_hooks_of_a_pydataset_are_called_once_per_epoch(model):
    data = NumberedBatches(6)
    fit(model, ResizableBatches(data, 5), epochs=3)
    assert data.epochs_ended == 3


def test_a_pydataset_with_workers(model):
    fit(model, ResizableBatches(NumberedBatches(8, workers=2), 5), epochs=2)
    assert model.samples == 2 * list(range(36))


def test_workers_of_a_pydataset_begin_anew_where_training_goes_on(model):
    batches = ResizableBatches(NumberedBatches(14, workers=2, max_queue_size=3), 10)
    batches.example()  # this reads ahead
    state = batches.state() | {"epoch": np.int64(1), "position": np.int64(105)}
    batches.load_state(state)
    fit(model, batches)
    assert times_each(model.samples, 105) == 1


@pytest.mark.parametrize("fails_at", [0, 3])
def test_an_error_of_a_source_is_the_users_and_is_not_taken_for_its_end(model, fails_at):
    class Failing(NumberedBatches):
        fails = False

        def __getitem__(self, index):
            if self.fails and index == fails_at:
                raise KeyError("broken")
            return super().__getitem__(index)

    data = Failing(8)
    batches = ResizableBatches(data, 5)
    data.fails = True
    with pytest.raises(KeyError, match="broken"):
        fit(model, batches)
    data.fails = False
    fit(model, batches)
    assert times_each(model.samples, 36) == 1


def test_a_part_of_a_stream_is_read_without_looking_at_all_that_is_kept():
    source = ResizableBatches(DATA["tf.data"](), 10)._source
    source.seek(0, 0, 0)
    source.available(105)
    source._kept[0] = source._kept[-1] = None
    ((x, _),) = source.read([(7, 98)])
    assert x.numpy().ravel().tolist() == list(range(7, 98))


ON_ANOTHER_DEVICE = """
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from tf_onebit import ResizableBatches
with tf.device("CPU:1"):
    x = tf.ones([4, 1])
(read,) = ResizableBatches(x, 2).example()
print(x.device[-5:], read.device[-5:])
"""


def test_arrays_are_on_the_cpu():
    _, output, errors = run_python(ON_ANOTHER_DEVICE)
    assert output.split() == ["CPU:1", "CPU:0"], errors
