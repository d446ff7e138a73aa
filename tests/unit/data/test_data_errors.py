"""Wrong uses of ResizableBatches."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.recording import NumberedBatches, fit, numbered
from tf_onebit import ResizableBatches


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
    message = "at most the number of samples. Received: global_batch_size=21, for 20 samples"
    with pytest.raises(ValueError, match=message):
        ResizableBatches(numbered(20), 21)
    with pytest.raises(ValueError, match=message):
        ResizableBatches(numbered(20), 20).resize(21)


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
    message = r"must have the same shape.*Received: a batch of shapes \[\(4, 4\)\] after .*3\)\]"
    batches = ResizableBatches(Growing(), 8)
    with pytest.raises(ValueError, match=message):
        batches.peek(12, 4)
    lengths = tf.TensorSpec([None, None])
    data = tf.data.Dataset.from_generator(lambda: iter(Growing()), output_signature=lengths)
    peek = ResizableBatches(data, 8).peek(12, 8)
    with pytest.raises(ValueError, match=message):
        list(peek)


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
