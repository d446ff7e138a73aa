"""Data with different numbers of batches on the workers of a strategy, or with none."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.in_scope import arrays_of, in_scope, samples, workers
from tests.support.nightly import nightly_rows
from tests.support.ranks import assert_same_bits_on_all_ranks, rank
from tests.support.training import (
    BATCH_SIZE,
    INPUTS,
    make_data,
    make_model,
    reference,
    with_layer,
)
from tf_onebit import FullPrecision, OneBit
from tf_onebit.distribute import MultiWorkerMirroredStrategy

UNEVEN = [3, 5, 8]  # batches


class OwnMetric(keras.Model):
    """A model that keeps a mean of the loss as Keras' guides do."""

    def __init__(self):
        super().__init__()
        self.layer, self.tracker = keras.layers.Dense(10), keras.metrics.Mean(name="own")

    def call(self, x):
        return self.layer(x)

    def train_step(self, data):
        self.tracker.update_state(1.0)
        return {"own": self.tracker.result(), **super().train_step(data)}


def uneven(form, strategy):
    """Returns data of which this rank has `UNEVEN[rank()]` batches."""
    x, labels = make_data(UNEVEN[rank()], 1)
    x, labels = x.reshape(-1, INPUTS), labels.reshape(-1)
    dataset = tf.data.Dataset.from_tensor_slices((x, labels)).batch(BATCH_SIZE)
    unknown = dataset.filter(lambda *_: True)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    per_worker = strategy.distribute_datasets_from_function
    return {
        "from_function": lambda: per_worker(lambda _: dataset),
        "of_unknown_length": lambda: per_worker(lambda _: unknown),
        "not_sharded": lambda: dataset.with_options(options),
    }[form]()


def number_of_steps(uneven_data, world_size):
    return (max if uneven_data == "continue" else min)(UNEVEN[:world_size])


FORMS = [("of_unknown_length", 4), ("of_unknown_length", 1), ("not_sharded", 1)]
FORMS += [("from_function", 1)]
USUAL = [
    ("tensorflow", 2, "continue", "of_unknown_length", 4),
    ("tensorflow", 2, "stop", "not_sharded", 1),
]
OTHERS = [
    ("tensorflow", 3, uneven_data, *form) for uneven_data in ("continue", "stop") for form in FORMS
]


@pytest.mark.workers(
    jobs=[*USUAL, *nightly_rows(*OTHERS)], also=["uneven_data", "form", "steps_per_execution"]
)
def test_data_that_end_at_different_steps(uneven_data, form, steps_per_execution, world_size):
    strategy = MultiWorkerMirroredStrategy(OneBit(), uneven_data=uneven_data)
    model = in_scope(
        strategy=strategy,
        make=with_layer(keras.layers.BatchNormalization),
        steps_per_execution=steps_per_execution,
    )
    history = model.fit(uneven(form, strategy), epochs=2, verbose=0).history
    steps = 2 * number_of_steps(uneven_data, world_size)
    assert model.optimizer.iterations.numpy() == steps
    assert np.isfinite(history["loss"]).all()
    assert all(np.isfinite(v).all() for v in arrays_of(model))
    assert_same_bits_on_all_ranks([np.array(v) for v in model.trainable_variables])


@workers
def test_empty_batches_do_not_count_in_metrics(world_size):
    strategy = MultiWorkerMirroredStrategy()
    model = in_scope(strategy=strategy, make=OwnMetric)
    model.fit(uneven("from_function", strategy), verbose=0)
    assert model.tracker.count.numpy() == sum(UNEVEN[:world_size])  # read from all


@workers
def test_steps_per_epoch_of_uneven_data(world_size):
    strategy = MultiWorkerMirroredStrategy()
    model = in_scope(strategy=strategy)
    model.fit(uneven("not_sharded", strategy), steps_per_epoch=max(UNEVEN[:2]), verbose=0)
    assert model.optimizer.iterations.numpy() == max(UNEVEN[:2])


@workers
@pytest.mark.parametrize("uneven_data", ["continue", "stop"])
def test_custom_loops_over_uneven_data_end_together(uneven_data, world_size):
    strategy = MultiWorkerMirroredStrategy(OneBit(), uneven_data=uneven_data)
    steps = sum(1 for _ in uneven("of_unknown_length", strategy))
    assert steps == number_of_steps(uneven_data, world_size)


@workers
def test_empty_batches_add_nothing(world_size):
    """The worker with more data continues as if alone, except that it divides by two."""
    strategy = MultiWorkerMirroredStrategy(FullPrecision())
    model = in_scope(strategy=strategy)
    x, labels = make_data(1, 1)
    part = x.reshape(-1, INPUTS), labels.reshape(-1)
    dataset = tf.data.Dataset.from_tensor_slices(part).batch(BATCH_SIZE)

    def mine(context):
        return dataset.take(context.input_pipeline_id)  # none on rank 0

    model.fit(strategy.distribute_datasets_from_function(mine), verbose=0)
    alone = reference(make_model(), keras.optimizers.SGD(0.05))
    alone.fit(dataset, verbose=0)
    for weight, other in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(weight, other, rtol=1e-5, atol=1e-6)


@workers
def test_batches_that_do_not_divide(world_size):
    model = in_scope(OneBit())
    x, labels = samples(world_size)
    model.fit(x[:50], labels[:50], 15, verbose=0)  # 8 and 7, and at the end 3 and 2
    assert model.optimizer.iterations.numpy() == 4
    assert_same_bits_on_all_ranks(arrays_of(model))
