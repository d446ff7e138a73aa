"""ResizableBatches read minibatches before a step asks for them."""

import concurrent.futures
import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.support.recording import Between, fit, numbered, recording, times_each
from tf_onebit import ResizableBatches
from tf_onebit.data.prefetch import Loaded, Prefetcher


class Numbers:
    """A reader of the numbers up to 10, three at once.

    Attributes:
        asked: list of the requested numbers.
    """

    def __init__(self):
        self.asked = []

    def __call__(self, start):
        self.asked.append(start)
        return [Loaded((i,), (i + 1,), [i]) for i in range(start, min(start + 3, 10))]


def test_every_item_comes_once_and_several_are_read_at_once():
    read = Numbers()
    ahead = Prefetcher(read)
    got = []
    while (loaded := ahead.get((len(got),))) is not None:
        got.extend(loaded.tensors)
        ahead.begin()
    assert got == list(range(10)) and read.asked == [0, 3, 6, 9, 10]


def test_another_key_is_read_anew():
    read = Numbers()
    ahead = Prefetcher(read)
    assert ahead.get((0,)).tensors == [0]
    ahead.begin()
    assert ahead.get((5,)).tensors == [5]
    assert ahead.get((6,)).tensors == [6]
    ahead.clear()
    assert ahead.get((7,)).tensors == [7]
    assert read.asked == [0, 3, 5, 7]


def test_an_error_is_that_of_the_key_that_is_asked_for():
    def read(key):
        if key == 1:
            raise KeyError("broken")
        return [Loaded((key,), (key + 1,), [key])]

    ahead = Prefetcher(read)
    ahead.get((0,))
    ahead.begin()
    assert ahead.get((2,)).tensors == [2]
    ahead.get((0,))
    ahead.begin()
    with pytest.raises(KeyError, match="broken"):
        ahead.get((1,))


def test_an_interrupt_leaves_the_thread_that_reads_to_be_waited_for(monkeypatch):
    def interrupt(futures):
        raise KeyboardInterrupt

    read = Numbers()
    ahead = Prefetcher(read)
    for i in range(3):
        ahead.get((i,))
        ahead.begin()
    with monkeypatch.context() as context:
        context.setattr(concurrent.futures, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            ahead.get((3,))
        with pytest.raises(KeyboardInterrupt):
            ahead.get((5,))
    assert ahead.get((3,)).tensors == [3] and read.asked == [0, 3]


@pytest.mark.parametrize("shuffle", [False, True])
def test_sizes_and_trials_change_in_the_midst_of_what_was_read_at_once(shuffle):
    batches = ResizableBatches(numbered(1000), 1000, shuffle=shuffle, seed=4)
    model = recording()
    fit(model, batches)
    expected = model.samples
    model.batches.clear()

    batches = ResizableBatches(numbered(1000), 4, shuffle=shuffle, seed=4)
    reads = []
    read = batches._source.read
    batches._source.read = lambda ranges: reads.append(len(ranges)) or read(ranges)
    tried = []

    def change(steps):
        if steps in (5, 40):
            batches.resize({5: 12, 40: 6}[steps])
        if steps % 7 == 3:
            for minibatch in batches.peek(30, 8):
                x, _ = next(minibatch)
                tried.append((batches.position, x.numpy().ravel().astype(int).tolist()))

    fit(model, batches, Between(change))
    assert model.sizes[:50] == 5 * [4] + 35 * [12] + 10 * [6]
    assert model.samples == expected and times_each(model.samples, 1000) == 1
    for position, trials in itertools.groupby(tried, key=lambda trial: trial[0]):
        samples = sum((trial[1] for trial in trials), [])
        assert samples == expected[position : position + 30]
    assert max(reads) == 32 and sum(read > 1 for read in reads) > 4


@pytest.mark.parametrize("samples, at_once", [(1, 32), (64, 32), (1024, 16), (4096, 4), (9999, 1)])
def test_few_bytes_are_read_at_once(samples, at_once):
    source = ResizableBatches(np.zeros([10_000, 256], np.float32), 1)._source
    assert source.at_once(samples) == at_once


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    "dtype", [tf.float32, tf.bfloat16, tf.bool, tf.uint8, tf.int64, tf.complex64, tf.string]
)
def test_tensors_of_every_type_come_through(dtype, shuffle):
    numbers = tf.range(20)[:, tf.newaxis]
    data = tf.as_string(numbers) if dtype == tf.string else tf.cast(numbers, dtype)
    batches = ResizableBatches((numbers, data), 4, shuffle=shuffle, seed=0)
    batches._source.seek(0, 0, 0)
    for order, read in batches._source.read([(0, 3), (3, 4), (9, 20)]):
        expected = tf.gather(data, order[:, 0])
        assert read.dtype == (tf.float32 if dtype == tf.bfloat16 else dtype)
        assert bool(tf.reduce_all(read == tf.cast(expected, read.dtype)))


def test_what_is_read_stays_as_it_is():
    batches = ResizableBatches(numbered(64), 16)
    batches._source.seek(0, 0, 0)
    kept = [batches._source.read([(i, i + 16)])[0][0] for i in range(0, 64, 16)]
    before = [tensor.numpy() for tensor in kept]
    batches._source.seek(0, 1, 0)
    batches._source.read([(0, 64)])
    assert all((a.numpy() == b).all() for a, b in zip(kept, before, strict=True))


def test_steps_leave_the_data_as_they_are():
    """Tensors share the data's memory, and TensorFlow may compute in memory that is not used."""
    batches = ResizableBatches(numbered(4096), 1024, shuffle=False)
    compute = tf.function(lambda x: tf.sqrt(x * 2 + 1))
    for _ in range(2):
        first = [compute(tensors[0]) for tensors in batches._source.read([(0, 1024), (1024, 2048)])]
        np.testing.assert_allclose(first[1].numpy().ravel(), np.sqrt(2 * np.arange(1024, 2048) + 1))
