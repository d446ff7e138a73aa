"""ResizableBatches in model.fit, in one process."""

import warnings

import keras
import numpy as np
import pytest

from tests.support.recording import (
    Between,
    every_data,
    fit,
    fresh,
    numbered,
    recording,
    resizing,
    times_each,
)
from tf_onebit import ResizableBatches


@every_data
@pytest.mark.parametrize("steps_per_execution", [1, 3])
@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {1: 40, 2: 3, 5: 16},
        {1: 1, 4: 105, 5: 2},
        {2: 64, 3: 32, 4: 16, 6: 8},
    ],
    ids=str,
)
def test_every_sample_once_per_epoch(traced, make_data, steps_per_execution, sizes):
    model = fresh(traced[steps_per_execution])
    batches = ResizableBatches(make_data(), 8, seed=1)
    ends = []
    at_end = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: ends.append(len(model.samples))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(batches, epochs=3, callbacks=[resizing(batches, sizes), at_end], verbose=0)
    assert ends == [105, 210, 315]
    for end in ends:
        assert times_each(model.samples[end - 105 : end], 105) == 1
    assert model.steps == len(model.batches)
    assert batches.position == 315 and batches.epoch == 3


def test_the_step_after_a_resize_has_the_new_size(model):
    batches = ResizableBatches(numbered(100), 10)
    fit(model, batches, resizing(batches, {2: 30, 3: 4, 4: 20, 5: 5}))
    assert model.sizes == [10, 10, 30, 4, 20, 5, 5, 5, 5, 3, 3]


@pytest.mark.parametrize(
    "samples, size, expected",
    [
        (60, 20, [20, 20, 20]),
        (55, 20, [20, 20, 15]),
        (50, 20, [20, 20, 10]),
        (49, 20, [20, 15, 14]),
        (41, 20, [20, 11, 10]),
        (21, 20, [11, 10]),
        (20, 20, [20]),
        (5, 5, [5]),
        (7, 1, [1] * 7),
    ],
)
def test_no_minibatch_of_an_epoch_is_less_than_half_as_large(samples, size, expected, model):
    fit(model, ResizableBatches(numbered(samples), size))
    assert model.sizes == expected
    assert times_each(model.samples, samples) == 1


def test_a_resize_before_a_step_is_of_that_step(model):
    batches = ResizableBatches(numbered(100), 10)
    sizes = {0: 20, 2: 30}
    callback = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda step, logs: batches.resize(sizes.get(step, 10))
    )
    fit(model, batches, callback)
    assert model.sizes == [20, 10, 30, 10, 10, 10, 10]


def test_a_resize_is_of_the_next_of_several_steps_in_one_execution(traced):
    model = fresh(traced[3])
    batches = ResizableBatches(numbered(100), 10)
    fit(model, batches, resizing(batches, {1: 20}))
    assert model.sizes == [10, 10, 10, 20, 20, 20, 10]


@pytest.mark.parametrize(
    "steps_per_execution, begin, end", [(1, [0, 1, 2], [0, 1, 2]), (3, [0], [2])]
)
def test_callbacks_get_the_numbers_of_steps(traced, steps_per_execution, begin, end):
    begun, ended = [], []
    callback = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda step, logs: begun.append(step),
        on_train_batch_end=lambda step, logs: ended.append(step),
    )
    batches = ResizableBatches(numbered(40), 10)
    fit(fresh(traced[steps_per_execution]), batches, callback)
    assert (begun[: len(begin)], ended[: len(end)]) == (begin, end)
    assert begun[-1] == 3 and ended[-1] == 2 + steps_per_execution


def test_position_is_that_of_finished_steps_between_any_two(model):
    batches = ResizableBatches(numbered(25), 10)
    seen = []
    callback = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda step, logs: seen.append((batches.position, batches.remaining)),
        on_train_batch_end=lambda step, logs: seen.append((batches.position, batches.remaining)),
        on_epoch_end=lambda epoch, logs: seen.append((batches.position, batches.remaining)),
    )
    fit(model, batches, callback, epochs=2)
    first = [(0, 25), (10, 15), (10, 15), (20, 5), (20, 5), (25, 0), (25, 25)]
    assert seen == first + [(25 + position, remaining) for position, remaining in first]


def test_one_graph_serves_all_sizes_and_trials(model):
    batches = ResizableBatches(numbered(100), 10)
    traces = []

    class Tracing(type(model)):
        def train_step(self, data):
            traces.append(1)
            return super().train_step(data)

    tracing = Tracing()
    tracing.compile("sgd", "mse")

    def try_out(steps):
        batches.resize(10 + steps)
        for minibatch in batches.peek(20, 1 + steps):
            tracing.train_function(minibatch)

    fit(tracing, batches, Between(try_out), epochs=2)
    fit(tracing, ResizableBatches(numbered(30), 3))
    # Keras builds the variables of the optimizer in a first one.
    assert len(traces) <= 2


def test_metrics_are_those_of_all_samples(model):
    x, _ = numbered(64)
    batches = ResizableBatches((x, np.ones([64, 1])), 16)
    model.layer.kernel.assign([[0.0]])
    model.layer.bias.assign([0.0])
    model.optimizer.learning_rate = 0.0
    history = fit(model, batches, resizing(batches, {1: 32, 2: 4})).history
    model.optimizer.learning_rate = 1e-6
    assert history["loss"] == [pytest.approx(1.0)]


def test_nothing_trains_eagerly_differently():
    model = recording(run_eagerly=True)
    batches = ResizableBatches(numbered(50), 10)
    fit(model, batches, resizing(batches, {1: 20}))
    assert model.sizes == [10, 20, 20] and model.steps == 3 and batches.position == 50


def test_order_is_a_function_of_seed_and_epoch(model):
    def orders(seed, epochs=2):
        model.batches.clear()
        fit(model, ResizableBatches(numbered(50), 50, seed=seed), epochs=epochs)
        return model.batches[:]

    first, second = orders(5)
    assert first != second and [first, second] == orders(5) and orders(6) != [first, second]


def test_order_does_not_depend_on_sizes(model):
    batches = ResizableBatches(numbered(50), 50, seed=2)
    fit(model, batches)
    expected = model.samples
    model.batches.clear()
    batches = ResizableBatches(numbered(50), 3, seed=2)
    fit(model, batches, resizing(batches, {2: 20, 3: 7}))
    assert model.samples == expected


def test_without_a_seed_the_order_follows_from_that_of_keras(model):
    def order():
        model.batches.clear()
        fit(model, ResizableBatches(numbered(50), 10))
        return model.samples

    keras.utils.set_random_seed(1)
    first, second = order(), order()
    keras.utils.set_random_seed(1)
    assert first != second and order() == first


def test_order_without_shuffle_is_that_of_the_arrays(model):
    fit(model, ResizableBatches(numbered(50), 8, shuffle=False))
    assert model.samples == list(range(50))


def test_a_second_fit_begins_the_next_epoch(model):
    batches = ResizableBatches(numbered(50), 10, seed=3)
    fit(model, batches, epochs=2)
    expected = model.samples
    model.batches.clear()
    again = ResizableBatches(numbered(50), 10, seed=3)
    fit(model, again)
    fit(model, again, initial_epoch=1, epochs=2)
    assert model.samples == expected and again.position == 100


@every_data
@pytest.mark.parametrize("steps", [1, 4, 11])
def test_the_epoch_of_an_interrupted_fit_goes_on_in_the_next(model, make_data, steps):
    batches = ResizableBatches(make_data(), 10, seed=3)
    stop = Between(lambda done: setattr(model, "stop_training", done == steps))
    fit(model, batches, stop)
    assert batches.position == len(model.samples) == min(10 * steps, 105)
    fit(model, batches, epochs=2 if steps < 11 else 1)
    assert times_each(model.samples, 105) == 2 and batches.position == 210


def test_what_goes_wrong_in_a_step_or_callback_does_not_lose_samples(model):
    batches = ResizableBatches(numbered(50), 10, seed=3)

    def fail(steps):
        if steps == 2:
            raise RuntimeError("as asked")

    with pytest.raises(RuntimeError, match="as asked"):
        fit(model, batches, Between(fail))
    fit(model, batches)
    assert times_each(model.samples, 50) == 1
