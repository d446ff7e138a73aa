"""The place of ResizableBatches in its data, saved and loaded."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.recording import (
    DATA,
    SHUFFLED,
    Between,
    NumberedBatches,
    ShuffledBatches,
    every_data,
    fit,
    fresh,
    numbered,
    recording,
    shuffled,
    times_each,
)
from tf_onebit import ResizableBatches


@pytest.mark.parametrize("make_data", (DATA | SHUFFLED).values(), ids=DATA | SHUFFLED)
@pytest.mark.parametrize("steps", [0, 1, 3, 11, 14, 24])
def test_training_goes_on_from_a_state(model, make_data, steps):
    batches = ResizableBatches(make_data(), 10, seed=4)
    states = {0: batches.state()}

    def change(done):
        batches.resize([10, 20, 5][done % 3])
        states[done] = batches.state()

    fit(model, batches, Between(change), epochs=3)
    position = int(states[steps]["position"])
    expected = model.samples[position:]
    assert all(isinstance(value, np.generic) for value in states[steps].values())

    other = ResizableBatches(make_data(), 8, seed=5)
    other.load_state({name: np.asarray(value) for name, value in states[steps].items()})
    assert other.position == position
    assert other.global_batch_size == int(states[steps]["global_batch_size"])
    model.batches.clear()
    fit(model, other, epochs=3 - position // 105)
    assert model.samples == expected
    assert other.position == 315


def test_a_state_that_is_loaded_as_training_begins(model):
    batches = ResizableBatches(numbered(50), 10, seed=1)
    fit(model, batches, Between(lambda steps: setattr(model, "stop_training", steps == 3)))
    state = batches.state()
    fit(model, batches)
    expected = model.samples[30:]
    model.batches.clear()
    again = ResizableBatches(numbered(50), 10, seed=2)
    load = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: again.load_state(state))
    fit(model, again, load)
    assert model.samples == expected


@every_data
@pytest.mark.parametrize("moment", ["on_train_batch_begin", "on_train_batch_end"])
def test_a_state_that_is_loaded_between_two_steps(model, make_data, moment):
    batches = ResizableBatches(make_data(), 10, seed=1)
    start = batches.state()
    moments = []

    def go_back(step, logs):
        if batches.position == 20 and not moments:
            moments.append(step)
            batches.load_state(start)

    fit(model, batches, keras.callbacks.LambdaCallback(**{moment: go_back}))
    assert model.samples[:20] == model.samples[20:40] and len(model.samples) == 125
    assert times_each(model.samples[20:], 105) == 1
    assert batches.position == 105


@pytest.mark.parametrize("workers", [1, 2])
def test_a_pydataset_goes_back_within_an_epoch(model, workers):
    batches = ResizableBatches(ShuffledBatches(workers=workers), 10, seed=1)
    fit(model, batches)
    start = batches.state()
    fit(model, batches, Between(lambda steps: setattr(model, "stop_training", steps == 3)))
    model.batches.clear()
    batches.load_state(start)
    fit(model, batches)
    again = ResizableBatches(ShuffledBatches(), 10, seed=1)
    once_more = fresh(recording())
    fit(once_more, again, epochs=2)
    assert model.samples == once_more.samples[105:]


@pytest.mark.parametrize(
    "make_data, reason",
    [
        (lambda: shuffled(105).batch(7), "tf.data.Dataset that shuffles"),
        (ShuffledBatches, "PyDataset cannot go back"),
    ],
)
def test_an_order_that_cannot_be_brought_back_is_said_to_be_another(model, make_data, reason):
    batches = ResizableBatches(make_data(), 10)
    start = batches.state()
    model.fit(batches, verbose=0)
    batches.load_state(start)
    with pytest.warns(UserWarning, match=f"samples of epoch 1 may come in another.*{reason}"):
        model.fit(batches, verbose=0)


def test_a_state_within_an_epoch_without_a_seed_is_said_to_come_in_another_order():
    tf.random.set_seed(None)
    data = tf.data.Dataset.from_tensor_slices(numbered(20)).shuffle(20).batch(2)
    batches = ResizableBatches(data, 4)
    state = batches.state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batches.load_state(state)
    state |= {"offset": 4, "position": 4}
    with pytest.warns(UserWarning, match="some samples twice.*ShuffleDataset has no seed"):
        batches.load_state(state)


def test_random_numbers_of_a_pydataset_follow_from_the_seed_and_leave_others_alone(model):
    def trained(seed):
        model.batches.clear()
        np.random.seed(len(orders))
        fit(model, ResizableBatches(ShuffledBatches(), 105, seed=seed), epochs=2)
        following.append(np.random.random())
        return model.batches[1]

    orders, following = [], []
    for seed in (1, 1, 2):
        orders.append(trained(seed))
    assert orders[0] == orders[1] != orders[2]
    for number, random in enumerate(following):
        assert np.random.RandomState(number).random() == random


def test_a_state_of_other_data_is_refused():
    state = ResizableBatches(numbered(50), 10).state()
    with pytest.raises(ValueError, match="Received: .* for 50 samples, and data with 60 samples"):
        ResizableBatches(numbered(60), 10).load_state(state)
    with pytest.raises(ValueError, match="for 50 samples, and data with an unknown number"):
        ResizableBatches(NumberedBatches(3), 1).load_state(state)


def test_epochs_of_a_shuffled_dataset_are_those_of_plain_iteration(model):
    def data():
        return tf.data.Dataset.from_tensor_slices(numbered(30)).shuffle(30, seed=3).batch(5)

    fit(model, ResizableBatches(data(), 10, seed=1), epochs=3)
    plain = data()
    assert model.samples == [int(x) for _ in range(3) for batch, _ in plain for (x,) in batch]
