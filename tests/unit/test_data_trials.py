"""What callbacks do with ResizableBatches between steps: trials, backups; and wrong uses."""

import concurrent.futures
import types
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.unit.programs import run_python
from tests.unit.recording import (
    DATA,
    SHUFFLED,
    Between,
    NumberedBatches,
    ShuffledBatches,
    fit,
    fresh,
    numbered,
    recording,
    shuffled,
    times_each,
)
from tf_onebit import ResizableBatches
from tf_onebit.data.placement import placement_in_fit

every_data = pytest.mark.parametrize("make_data", DATA.values(), ids=DATA)


@pytest.fixture(scope="module")
def traced():
    return {steps: recording(steps_per_execution=steps) for steps in (1, 3)}


@pytest.fixture
def model(traced):
    return fresh(traced[1])


def try_out(model, peek):
    """The samples of each minibatch of a trial."""
    before = len(model.batches)
    for minibatch in peek:
        model.train_function(minibatch)
    tried = model.batches[before:]
    del model.batches[before:]
    return tried


@every_data
@pytest.mark.parametrize("steps_per_execution", [1, 3])
def test_trials_see_the_samples_that_come_next(traced, make_data, steps_per_execution):
    model = fresh(traced[steps_per_execution])
    batches = ResizableBatches(make_data(), 8, seed=4)
    trials = []

    def look(steps):
        peeks = [batches.peek(30, 12), batches.peek(30, 12), batches.peek(500, 7)]
        trials.append((batches.position, [try_out(model, peek) for peek in peeks]))

    fit(model, batches, Between(look))
    assert times_each(model.samples, 105) == 1
    assert batches.position == 105
    for position, (first, second, rest) in trials:
        after = model.samples[position:]
        assert first == second
        assert sum(first, []) == after[:30] and sum(rest, []) == after
        assert all(len(batch) == 12 for batch in first[: len(after[:30]) // 12])


def test_a_trial_says_what_it_has(model):
    batches = ResizableBatches(numbered(100), 10)
    peek = batches.peek(64, 20)
    assert (peek.samples, len(peek)) == (64, 4)
    fit(model, batches, Between(lambda steps: setattr(model, "stop_training", steps == 9)))
    peek = batches.peek(64, 20)
    assert (peek.samples, len(peek)) == (10, 1)
    assert [len(next(minibatch)[0]) for minibatch in peek] == [10]
    fit(model, batches)
    assert batches.peek(100, 50).samples == 100  # of the next epoch


def test_a_trial_at_the_end_of_an_epoch_has_nothing(model):
    batches = ResizableBatches(numbered(20), 10)
    found = []
    fit(model, batches, Between(lambda steps: found.append(len(batches.peek(10, 10)))))
    assert found == [1, 0]


def test_a_trial_is_over_when_training_goes_on(model):
    batches = ResizableBatches(numbered(50), 10)
    peek = batches.peek(20, 10)
    fit(model, batches)
    with pytest.raises(ValueError, match="until the next step.*Call peek again"):
        list(peek)


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
    with pytest.warns(UserWarning, match="trained on twice.*ShuffleDataset has no seed"):
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
    with pytest.raises(ValueError, match="same data. Received: one of 50 samples, for 60 samples"):
        ResizableBatches(numbered(60), 10).load_state(state)
    with pytest.raises(ValueError, match="of 50 samples, for an unknown number of samples"):
        ResizableBatches(NumberedBatches(3), 1).load_state(state)


@pytest.mark.parametrize("size", [0, -4, 2.0, "8", None, True])
def test_sizes_are_positive_whole_numbers(size):
    batches = ResizableBatches(numbered(20), 4)
    message = "global_batch_size must be a positive whole number. Received: global_batch_size="
    with pytest.raises(ValueError, match=message):
        ResizableBatches(numbered(20), size)
    with pytest.raises(ValueError, match=message):
        batches.resize(size)
    with pytest.raises(ValueError, match=message):
        batches.peek(8, size)
    with pytest.raises(ValueError, match="samples must be a positive whole number"):
        batches.peek(size, 4)
    assert batches.global_batch_size == 4


def test_sizes_are_not_larger_than_the_data():
    message = "not be larger than the data. Received: global_batch_size=21, for 20 samples"
    with pytest.raises(ValueError, match=message):
        ResizableBatches(numbered(20), 21)
    with pytest.raises(ValueError, match=message):
        ResizableBatches(numbered(20), 20).resize(21)


def test_sizes_are_multiples_of_the_number_of_workers():
    message = "multiple of the number of workers, which is 3. Received: .*=8. Use 6 or 9."
    with pytest.raises(ValueError, match=message):
        ResizableBatches(numbered(20), 8, rank=0, world_size=3)
    with pytest.raises(ValueError, match="=1. Use 3 or 3|=1. Use 3."):
        ResizableBatches(numbered(20), 1, rank=0, world_size=3)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"rank": 1}, "rank and world_size must be given together"),
        ({"world_size": 2}, "rank and world_size must be given together"),
        ({"rank": 2, "world_size": 2}, "rank must be less than world_size"),
        ({"rank": -1, "world_size": 2}, "rank must be a whole number, 0 or more"),
        ({"rank": 0, "world_size": 0}, "world_size must be a positive whole number"),
        ({"seed": -1}, "seed must be a whole number, 0 or more"),
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"seed": 2**63}, r"seed must be less than 2\*\*63. Received: seed=9223372036854775808"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        ResizableBatches(numbered(20), 4, **arguments)


@pytest.mark.parametrize(
    "data, message",
    [
        (None, "data must be an array, a tuple .* Received: data=.*NoneType"),
        ((np.ones([4, 1]), None), "data must be an array"),
        (([1.0, 2.0], [1.0, 2.0]), "data must be an array"),
        (4 * (np.ones([4, 1]),), "data must be an array"),
        ((), "data must be an array"),
        ((np.ones([4, 1]), np.ones([5, 1])), r"same number of samples.*\[4, 5\] samples"),
        (np.ones([0, 1]), "at least one"),
        (iter([np.ones([4, 1])]), "data must be an array"),
        (tf.data.Dataset.range(8).batch(2).repeat(), "must end.*infinite tf.data.Dataset"),
        (tf.data.Dataset.range(8), "samples along their first axis"),
        (NumberedBatches(0), "must not be empty. Received: a PyDataset without batches"),
        (NumberedBatches(None), "must end.*num_batches is None"),
        (
            tf.data.Dataset.from_tensors(tf.ragged.constant([[1], [1, 2]])),
            "structures of dense tensors",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_data_that_cannot_be_used_are_refused(data, message):
    with pytest.raises(ValueError, match=message):
        ResizableBatches(data, 2)


def test_batches_of_a_stream_must_have_as_many_of_everything(model):
    class Uneven(NumberedBatches):
        def __getitem__(self, index):
            x, y = super().__getitem__(index)
            return (x, y[:1])

    with pytest.raises(ValueError, match=r"same number of samples. Received: .*\[1, 2\]"):
        fit(model, ResizableBatches(Uneven(3), 4))


class Growing(keras.utils.PyDataset):
    """Batches whose samples are one longer each time."""

    num_batches = 3

    def __getitem__(self, index):
        return np.ones([4, 3 + index], np.float32)


def test_batches_of_a_stream_must_have_one_shape_of_samples():
    message = r"must have one shape.*Received: a batch of shapes \[\(4, 4\)\] after .*3\)\]"
    batches = ResizableBatches(Growing(), 8)
    with pytest.raises(ValueError, match=message):
        batches.peek(12, 4)
    lengths = tf.TensorSpec([None, None])
    data = tf.data.Dataset.from_generator(lambda: iter(Growing()), output_signature=lengths)
    peek = ResizableBatches(data, 8).peek(12, 8)
    with pytest.raises(ValueError, match=message):
        list(peek)


def test_a_part_of_a_stream_is_read_without_looking_at_all_that_is_kept():
    source = ResizableBatches(DATA["tf.data"](), 10)._source
    source.seek(0, 0, 0)
    source.available(105)
    source._kept[0] = source._kept[-1] = None
    x, _ = source.read(7, 98)
    assert x.numpy().ravel().tolist() == list(range(7, 98))


ON_ANOTHER_DEVICE = """
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from tf_onebit import ResizableBatches
with tf.device("CPU:1"):
    x = tf.ones([4, 1])
(array,) = ResizableBatches(x, 2)._source._arrays
print(x.device[-5:], array.device[-5:])
"""


def test_arrays_are_on_the_cpu():
    _, output, errors = run_python(ON_ANOTHER_DEVICE)
    assert output.split() == ["CPU:1", "CPU:0"], errors


def test_an_interrupt_leaves_the_thread_that_reads_to_be_waited_for():
    class Interrupted(concurrent.futures.Future):
        def result(self, timeout=None):
            raise KeyboardInterrupt

    batches = ResizableBatches(numbered(20), 4)
    batches._ahead = batches._key(), Interrupted()
    with pytest.raises(KeyboardInterrupt):
        batches._next()
    assert batches._ahead is not None
    batches._ahead[1].set_result(None)
    with pytest.raises(KeyboardInterrupt):
        batches._next()
    assert batches._ahead is None


def test_parts_and_offset():
    batches = ResizableBatches(numbered(50), 10, rank=1, world_size=2)
    assert (batches.parts, batches.offset) == (2, 0)
    batches.load_state(batches.state() | {"epoch": 1, "offset": 30, "position": 80})
    assert batches.offset == 30


@every_data
def test_fewer_samples_left_than_workers_end_a_resumed_epoch(model, make_data):
    state = ResizableBatches(make_data(), 3).state() | {"offset": 103, "position": 103}
    batches = ResizableBatches(make_data(), 3, rank=0, world_size=3)
    batches.load_state(state)
    with pytest.warns(UserWarning, match="of epoch 1 are left out. Received: .* 2 of them left"):
        model.fit(batches, verbose=0)
    assert model.samples == [] and (batches.epoch, batches.offset) == (1, 0)
    fit(model, batches)
    assert len(model.samples) == 35


def test_a_stream_without_samples_is_refused(model):
    empty = tf.data.Dataset.from_tensor_slices(numbered(10)).batch(2).filter(lambda x, y: False)
    with pytest.raises(ValueError, match="data must not be empty"):
        fit(model, ResizableBatches(empty, 2))


ones = np.ones([20, 1])


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"y": ones}, r"takes no y\. Received: y=ndarray. Give data=\(x, y\)"),
        ({"sample_weight": ones}, "takes no sample_weight"),
        ({"class_weight": {0: 1.0}}, r"takes no class_weight. Received: class_weight=\{0: 1.0\}"),
        ({"batch_size": 4}, "takes no batch_size. .* or call resize"),
        ({"steps_per_epoch": 2}, "takes no steps_per_epoch"),
        ({"shuffle": False}, r"takes no shuffle. .*ResizableBatches\(..., shuffle=False\)"),
        ({"validation_split": 0.5}, "validation_split"),
    ],
)
def test_fit_takes_nothing_else_about_the_data(model, arguments, message):
    with pytest.raises(ValueError, match=message):
        fit(model, ResizableBatches(numbered(20), 4), **arguments)


def test_they_are_for_training_only(model):
    batches = ResizableBatches(numbered(20), 4)
    with pytest.raises(ValueError, match="for training.*Received: a call from model.evaluate"):
        model.evaluate(batches, verbose=0)
    with pytest.raises(ValueError, match="for training.*Received: a call from model.predict"):
        model.predict(batches, verbose=0)
    with pytest.raises(ValueError, match="from model.fit as validation_data"):
        fit(model, ResizableBatches(numbered(20), 4), validation_data=batches)
    with pytest.raises(ValueError, match="from model.fit as validation_data"):
        model.fit(*numbered(20), verbose=0, validation_data=batches)
    model.fit(ResizableBatches(numbered(20), 4), validation_data=numbered(20), verbose=0)


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@every_data
def test_workers_share_each_minibatch(model, make_data, world_size):
    def parts_of(rank):
        model.batches.clear()
        batches = ResizableBatches(
            make_data(), 3 * world_size, seed=7, rank=rank, world_size=world_size
        )
        sizes = [1, 6, 2, 4]
        fit(model, batches, Between(lambda steps: batches.resize(sizes[steps % 4] * world_size)))
        assert batches.position == 105
        return model.batches[:]

    parts = [parts_of(rank) for rank in range(world_size)]
    minibatches = [sum(step, []) for step in zip(*parts, strict=True)]
    assert times_each(sum(minibatches, []), 105) == 1
    # All of them have some, and one more than another at most.
    spreads = [{len(part) for part in step} for step in zip(*parts, strict=True)]
    assert all(min(spread) > 0 and max(spread) - min(spread) <= 1 for spread in spreads)
    sizes = [len(minibatch) for minibatch in minibatches[:3]]
    assert sizes == [3 * world_size, 6 * world_size, 2 * world_size]
    model.batches.clear()
    alone = ResizableBatches(make_data(), 3, seed=7)
    fit(model, alone)
    assert sum(minibatches, []) == model.samples


def test_what_would_be_too_few_for_all_workers_goes_into_the_last_minibatch(model):
    sizes = []
    for rank in range(3):
        model.batches.clear()
        fit(model, ResizableBatches(numbered(20), 9, rank=rank, world_size=3))
        sizes.append(model.sizes)
    assert sizes == [[3, 3], [3, 4], [3, 4]]


def test_fewer_samples_than_workers_are_refused(model):
    batches = ResizableBatches(NumberedBatches(1), 3, rank=0, world_size=3)
    with pytest.raises(ValueError, match="sample in each step. Received: .* 1 samples left, for 3"):
        fit(model, batches)


def test_a_strategy_whose_workers_are_not_known_is_refused(model):
    # As MultiWorkerMirroredStrategy of TensorFlow looks from one of two processes.
    strategy = types.SimpleNamespace(
        extended=types.SimpleNamespace(worker_devices=["CPU:0"]), num_replicas_in_sync=2
    )
    with pytest.raises(ValueError, match="workers of a strategy must be known.*2 replicas.* has 1"):
        placement_in_fit(model, strategy, 1, None, None)
