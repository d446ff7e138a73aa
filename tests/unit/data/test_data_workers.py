"""The parts of minibatches of ResizableBatches that several workers get."""

import types

import pytest

from tests.support.recording import Between, NumberedBatches, every_data, fit, numbered, times_each
from tf_onebit import ResizableBatches
from tf_onebit.data.partition import partition_in_fit


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
    # All workers have some, and at most one more than another.
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


def test_sizes_are_multiples_of_the_number_of_workers():
    message = "multiple of the number of workers, which is 3. Received: .*=8. Use 6 or 9."
    with pytest.raises(ValueError, match=message):
        ResizableBatches(numbered(20), 8, rank=0, world_size=3)
    with pytest.raises(ValueError, match="=1. Use 3 or 3|=1. Use 3."):
        ResizableBatches(numbered(20), 1, rank=0, world_size=3)


def test_fewer_samples_than_workers_are_refused(model):
    batches = ResizableBatches(NumberedBatches(1), 3, rank=0, world_size=3)
    with pytest.raises(ValueError, match="sample in each step. Received: .* 1 samples, for 3"):
        fit(model, batches)


@every_data
def test_fewer_samples_left_than_workers_end_a_resumed_epoch(model, make_data):
    state = ResizableBatches(make_data(), 3).state() | {"offset": 103, "position": 103}
    batches = ResizableBatches(make_data(), 3, rank=0, world_size=3)
    batches.load_state(state)
    with pytest.warns(UserWarning, match="The last 2 samples of epoch 1 are left out"):
        model.fit(batches, verbose=0)
    assert model.samples == [] and (batches.epoch, batches.offset) == (1, 0)
    fit(model, batches)
    assert len(model.samples) == 35


def test_parts_and_offset():
    batches = ResizableBatches(numbered(50), 10, rank=1, world_size=2)
    assert (batches.parts, batches.offset) == (2, 0)
    batches.load_state(batches.state() | {"epoch": 1, "offset": 30, "position": 80})
    assert batches.offset == 30


def test_a_strategy_whose_workers_are_not_known_is_refused(model):
    # TensorFlow's MultiWorkerMirroredStrategy looks like this from one of two processes.
    strategy = types.SimpleNamespace(
        extended=types.SimpleNamespace(worker_devices=["CPU:0"]), num_replicas_in_sync=2
    )
    with pytest.raises(ValueError, match="replicas of the strategy belong to.*2 replicas.* has 1"):
        partition_in_fit(model, strategy, 1, None, None)
