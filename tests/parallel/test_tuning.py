"""AutoMinibatchSize and AutoLearningRate over several processes."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_onebit.horovod as hvd
from tests.support.nightly import nightly
from tests.support.ranks import assert_same_bits_on_all_ranks, gather, rank
from tests.support.training import CLASSES, INPUTS, compiled, make_data, make_model
from tf_onebit import Delayed, Local, OneBit, ResizableBatches
from tf_onebit.callbacks import AutoLearningRate, AutoMinibatchSize
from tf_onebit.distribute import MultiWorkerMirroredStrategy

both_engines = pytest.mark.workers(2, engines=["horovod", "tensorflow"])
over_horovod = pytest.mark.workers(2, engines=["horovod", *nightly("tensorflow")])
in_a_strategy = pytest.mark.workers(2, engines=["tensorflow", *nightly("horovod")])
SAMPLES = 384


def samples():
    x, labels = make_data(SAMPLES // 16, 1)
    return x.reshape(-1, INPUTS), labels.reshape(-1)


def make(engine, exchange, rate=0.1, make_model=make_model):
    """Returns a model whose workers exchange gradients, and its data."""
    optimizer = keras.optimizers.SGD
    if engine == "horovod":
        distributed = hvd.DistributedOptimizer(optimizer(rate, momentum=0.5), exchange)
        model = compiled(make_model(), distributed, metrics=["accuracy"])
    else:
        with MultiWorkerMirroredStrategy(exchange).scope():
            model = compiled(make_model(), optimizer(rate, momentum=0.5), metrics=["accuracy"])
    return model, ResizableBatches(samples(), 8, seed=1)


def fit(model, data, *callbacks):
    return model.fit(data, epochs=2, callbacks=callbacks, verbose=0).history


def state_of(model):
    """Returns the final state of this worker's model, optimizer and exchange."""
    states = model.optimizer.gradient_exchange.carried.states()
    arrays = [array for e in states for one in e for _, array in sorted(one.items())]
    return [np.array(v) for v in (*model.variables, *model.optimizer.variables)] + arrays


@pytest.mark.nightly
@both_engines
def test_workers_decide_alike_and_a_search_leaves_no_trace(engine, world_size):
    """Residuals differ between workers, and a trial must not change them."""
    plain, data = make(engine, OneBit(min_size=0))
    expected = fit(plain, data)
    model, data = make(engine, OneBit(min_size=0))
    size = AutoMinibatchSize(data, 160, 80, max_size=8, multiple=2, error_margin=1e9)
    assert fit(model, data, size) == expected
    for mine, theirs in zip(state_of(model), state_of(plain), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    tried = [[size for size, _ in trials] for trials in size.history["trials"]]
    assert tried == [[], *3 * [[4, 6, 8]]]
    histories = gather(size.history)
    assert all(history == histories[0] for history in histories)


@over_horovod
def test_size_and_learning_rate_with_delayed_gradients(engine, world_size):
    model, data = make(engine, Delayed(OneBit(min_size=0)))
    size = AutoMinibatchSize(
        data, 192, 160, max_size=8, multiple=2, error_margin=0.05, tune_without_delay=True
    )
    x, labels = (array[rank() * 64 :][:64] for array in samples())
    held_out = (x, labels) if engine == "horovod" else tuple(a[:128] for a in samples())
    learning_rate = AutoLearningRate(held_out, 100, min_improvement=0.2)
    fit(model, data, size, learning_rate)
    assert len(size.history["trials"][1]) > 1
    assert min(learning_rate.history["learning_rate"]) < 0.1
    for history in (size.history, learning_rate.history):
        assert all(other == history for other in gather(history))
    assert_same_bits_on_all_ranks([np.array(v) for v in model.trainable_variables])


@in_a_strategy
def test_trial_that_diverges_fails_on_all_workers_and_training_goes_on(engine, world_size):
    """A step with a gradient that is not finite ends in an error. The error ends the trial only."""
    model, data = make(engine, OneBit(min_size=0))
    weights = []

    class Diverging(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if data.position == 192:
                rate = np.inf if not weights else 0.1
                model.optimizer.learning_rate = rate
                weights.append(model.get_weights())

    size = AutoMinibatchSize(data, 192, 128, multiple=2)
    with pytest.warns(UserWarning, match="criterion is not finite with any minibatch size"):
        model.fit(data, callbacks=[Diverging(), size, Diverging()], verbose=0)
    assert np.isnan(size.history["trials"][1][0][1])
    assert size.history["global_batch_size"] == [8, 4]
    for mine, theirs in zip(*weights, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert data.position == SAMPLES
    assert all(map(np.all, map(np.isfinite, model.get_weights())))


class NotFiniteIfLarge(keras.layers.Layer):
    """A layer that is not finite if a minibatch has a marked sample, and many others."""

    def call(self, x):
        is_bad = (tf.shape(x)[0] >= 4) & tf.reduce_any(x[:, 0] == 7.0)
        return x * tf.where(is_bad, np.float32(np.inf), np.float32(1.0))


@in_a_strategy
def test_trial_whose_last_gradients_are_not_finite_fails_and_training_goes_on(engine, world_size):
    """They are still under way when the last step of the trial is over."""

    def make_model():
        keras.utils.set_random_seed(0)
        layers = [NotFiniteIfLarge(), keras.layers.Dense(CLASSES)]
        return keras.Sequential([keras.Input((INPUTS,)), *layers])

    model, _ = make(engine, Delayed(OneBit(min_size=0)), make_model=make_model)
    x, labels = samples()
    x[-8:, 0] = 7.0  # the last minibatch of the largest size
    data = ResizableBatches((x, labels), 4, shuffle=False)
    size = AutoMinibatchSize(data, 192, 192, multiple=4, max_size=8, error_margin=1e9)
    model.fit(data, callbacks=[size], verbose=0)
    (small, finite), (large, not_finite) = size.history["trials"][1]
    assert (small, large) == (4, 8)
    assert np.isfinite(finite) and np.isnan(not_finite)
    assert size.history["global_batch_size"] == [4, 4]
    assert data.position == SAMPLES


@over_horovod
def test_what_cannot_work_is_refused(engine, world_size):
    model, data = make(engine, OneBit())
    with pytest.raises(ValueError, match="min_size must be a multiple of the number of workers.*2"):
        fit(model, data, AutoMinibatchSize(data, 192, 128, min_size=5, multiple=1))
    model, data = make(engine, Delayed(OneBit()))
    with pytest.raises(ValueError, match="at least 11 minibatches.*trial_samples=80"):
        fit(model, data, AutoMinibatchSize(data, 192, 80, multiple=2))
    model, data = make(engine, OneBit())
    for callback, name in (
        (AutoMinibatchSize(data, 192 + rank(), 128), "interval_samples of AutoMinibatchSize"),
        (AutoLearningRate(samples(), 96, factor=0.5 / (1 + rank())), "factor of AutoLearningRate"),
    ):
        with pytest.raises(ValueError, match=name):
            fit(model, data, callback)
    model, data = make(engine, Local())
    for callback in (AutoMinibatchSize(data, 192, 128), AutoLearningRate(samples(), 96)):
        with pytest.raises(ValueError, match="needs workers that make every step together"):
            fit(model, data, callback)
