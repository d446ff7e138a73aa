"""`Delayed` in `model.fit`, over both engines."""

import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_onebit.horovod as hvd
from tests.support.both_engines import STEPS, batches, model_with
from tests.support.late import Late, arrays_of, assert_like, whole_batches
from tests.support.nightly import nightly, nightly_rows
from tests.support.ranks import (
    assert_same_bits_on_all_ranks,
    from_first,
    gather,
    rank,
)
from tests.support.training import (
    INPUTS,
    compiled,
    embedding_model,
    gradients_of,
    make_model,
)
from tf_onebit import Delayed, FullPrecision, OneBit
from tf_onebit._training.model_optimizers import flush, without_delay
from tf_onebit.callbacks import BackupAndRestore, Monitor

over_horovod = pytest.mark.workers(2)
horovod_first = pytest.mark.workers(2, engines=["horovod", *nightly("tensorflow")])
strategy_first = pytest.mark.workers(2, engines=["tensorflow", *nightly("horovod")])


def sgd(**arguments):
    return lambda: keras.optimizers.SGD(0.1, **arguments)


def decaying():
    return keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5))


def delayed_model(optimizer, exchange=None, make=make_model, **arguments):
    """Returns a compiled model whose exchange, by default full precision, is delayed."""
    return model_with(exchange or Delayed(FullPrecision()), optimizer, make, **arguments)


def assert_same_bits(model, other):
    pairs = zip(arrays_of(model, model.optimizer), arrays_of(other, other.optimizer), strict=True)
    for array, expected in pairs:
        np.testing.assert_array_equal(array, expected)


CASES = {
    "momentum": (sgd(momentum=0.9, clipnorm=0.05, weight_decay=0.1), {}, {}),
    "averages_of_embeddings": (
        sgd(use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3),
        {"make": embedding_model},
        {},
    ),
    "three_steps_in_a_loop": (decaying, {"delay": 3}, {"steps_per_execution": 4}),
}


@pytest.mark.workers(
    jobs=[
        ("horovod", 2, "averages_of_embeddings"),
        ("tensorflow", 2, "three_steps_in_a_loop"),
        *nightly_rows(("horovod", 2, "momentum"), ("horovod", 2, "three_steps_in_a_loop")),
        *nightly_rows(("tensorflow", 2, "momentum"), ("tensorflow", 2, "averages_of_embeddings")),
    ],
    also=["name"],
)
def test_fit_applies_gradients_late(name, world_size):
    """The length of the data is unknown, so the last step must do nothing."""
    optimizer, settings, arguments = CASES[name]
    exchange = Delayed(FullPrecision(), settings.get("delay", 1))
    model = delayed_model(optimizer, exchange, settings.get("make", make_model), **arguments)
    model.fit(batches(world_size).filter(lambda *_: True), epochs=2, verbose=0)
    assert_same_bits_on_all_ranks(arrays_of(model, model.optimizer))
    whole = whole_batches(STEPS, world_size)
    assert_like(model, from_first(lambda: Late(optimizer, **settings).fit(whole, epochs=2)))


class Evaluation(keras.callbacks.Callback):
    """A callback that calls `view` with the model after some steps, and keeps its results."""

    def __init__(self, view, *steps):
        super().__init__()
        self.view, self.steps, self.seen = view, steps, []

    def on_train_batch_end(self, batch, logs=None):
        if batch in self.steps:
            self.seen.append(self.view(self.model))


@strategy_first
def test_accumulated_gradients_are_late_by_an_update(world_size):
    """The same holds if the model is read in the middle of an accumulation."""
    model = delayed_model(sgd(gradient_accumulation_steps=2, momentum=0.9))
    evaluation = Evaluation(lambda model: model.get_weights(), 4)
    model.fit(batches(world_size, steps=10), verbose=0, callbacks=[evaluation])
    seen, weights = from_first(lambda: late_by_an_update(whole_batches(10, world_size)))
    for array, other in zip(evaluation.seen[0], seen, strict=True):
        np.testing.assert_allclose(array, other, rtol=1e-5, atol=1e-5)
    for array, other in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_allclose(array, other, rtol=1e-5, atol=1e-5)
    assert model.optimizer._iterations.numpy() == 10


def late_by_an_update(whole):
    """Returns the weights that are seen after five batches, and the final ones."""
    late = Late(sgd(momentum=0.9))
    for update in range(5):
        if update == 2:
            # The model computes its first batch before the flush, and its second after.
            first = gradients_of(late.model, *whole[4])
            late.flush()
            seen = late.model.get_weights()
            second = gradients_of(late.model, *whole[5])
            late._queue.append([(a + b) / 2 for a, b in zip(first, second, strict=True)])
        else:
            late.step(*whole[2 * update : 2 * update + 2])
    late.flush()
    return seen, late.model.get_weights()


@pytest.mark.nightly
@horovod_first
def test_step_that_is_skipped_delays_what_is_under_way(world_size):
    def scaled():
        return keras.optimizers.LossScaleOptimizer(sgd(momentum=0.9)(), initial_scale=64.0)

    model = delayed_model(scaled)
    model.fit(batches(world_size, spoil=2), verbose=0)
    whole = whole_batches(STEPS, world_size)
    expected = from_first(lambda: Late(sgd(momentum=0.9)).fit(whole[:2] + whole[3:]))
    assert_like(model, expected)


@horovod_first
def test_model_is_complete_wherever_it_is_looked_at(world_size, tmp_path):
    model = delayed_model(sgd(momentum=0.9), run_eagerly=True)
    looks = {
        0: lambda model: model.evaluate(batches(world_size), verbose=0),
        1: lambda model: model.predict(np.ones([2, INPUTS], np.float32), verbose=0),
        2: lambda model: model.save_weights(tmp_path / f"{rank()}.weights.h5"),
        3: lambda model: model.get_state_tree(),
    }
    callbacks = [Evaluation(look, step) for step, look in looks.items()]
    model.fit(batches(world_size), verbose=0, callbacks=callbacks)
    late, whole = Late(sgd(momentum=0.9)), whole_batches(STEPS, world_size)
    for step, batch in enumerate(whole):
        late.step(batch)
        if step in looks:
            late.flush()
        if step == 2:
            saved = make_model()
            saved.load_weights(tmp_path / f"{rank()}.weights.h5")
            for array, other in zip(saved.get_weights(), late.model.get_weights(), strict=True):
                np.testing.assert_allclose(array, other, rtol=1e-5, atol=1e-5)
    late.flush()
    assert_like(model, late.arrays)


@over_horovod
def test_one_worker_may_look_at_the_model_alone(world_size):
    """The worker waits until the others come to the end of their next step."""
    model = delayed_model(sgd(momentum=0.9), Delayed(OneBit(min_size=0)))
    alone = Evaluation(lambda model: model.get_weights(), *([1] if rank() == 0 else []))
    model.fit(batches(world_size), epochs=2, verbose=0, callbacks=[alone])
    assert_same_bits_on_all_ranks(model.get_weights())
    assert model.optimizer.iterations.numpy() == 2 * STEPS


@pytest.mark.nightly
@strategy_first
def test_without_delay_steps_apply_their_own_gradients(world_size):
    model = delayed_model(sgd(momentum=0.9), Delayed(OneBit(min_size=0)))
    reference = delayed_model(sgd(momentum=0.9), OneBit(min_size=0))
    with without_delay(model):
        with without_delay(model.optimizer):
            pass
        model.fit(batches(world_size), verbose=0)
    reference.fit(batches(world_size), verbose=0)
    assert_same_bits(model, reference)
    iterations = model.optimizer.iterations.numpy()
    model.fit(batches(world_size, steps=1), verbose=0)
    assert model.optimizer.iterations.numpy() == iterations + 1


class Stop(keras.callbacks.Callback):
    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_train_batch_end(self, batch, logs=None):
        self.step -= 1
        if self.step == 0:
            raise InterruptedError


@pytest.mark.nightly
@horovod_first
def test_run_resumed_in_an_epoch_has_the_same_bits(world_size, tmp_path):
    check_resumed_run(8, 3, world_size, tmp_path)


@pytest.mark.nightly
@over_horovod
def test_run_resumed_at_the_end_of_an_epoch_before_the_flush_has_the_same_bits(
    world_size, tmp_path
):
    check_resumed_run(7, 5, world_size, tmp_path)


def check_resumed_run(step, steps_between, world_size, tmp_path):
    """Asserts that a run that is interrupted after a step ends as an undisturbed one."""
    directory = gather(str(tmp_path))[0]

    def train(*callbacks):
        model = delayed_model(sgd(momentum=0.9), Delayed(OneBit(min_size=0), steps=2))
        model.fit(batches(world_size), epochs=2, verbose=0, callbacks=list(callbacks))
        return model

    expected = train()
    with pytest.raises(InterruptedError):
        train(BackupAndRestore(directory, steps_between), Stop(step))
    assert_same_bits(train(BackupAndRestore(directory, steps_between)), expected)


@over_horovod
def test_error_comes_on_all_workers_and_names_the_gradient(world_size):
    model = delayed_model(sgd(), Delayed(OneBit(min_size=0)))
    # Processors differ in which gradients these are.
    message = r"Rank 1 met an infinity or NaN in the gradient of .*(first|last)/(kernel|bias)\W"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        model.fit(batches(world_size, spoil=2), verbose=0)
    assert all(np.isfinite(w).all() for w in model.get_weights())


class SlowOnRank1(keras.layers.Layer):
    """A layer whose results, and so all gradients behind it, are late on rank 1."""

    def call(self, x):
        if rank() == 1:
            x = tf.numpy_function(lambda x: (time.sleep(0.4), x)[1], [x], tf.float32)
        return tf.ensure_shape(x, [None, INPUTS])


@horovod_first
def test_training_goes_on_after_an_error(world_size):
    """The same holds if a worker knows of it long before the others send their next messages."""

    def make():
        keras.utils.set_random_seed(0)
        layers = [SlowOnRank1(), keras.layers.Dense(64), keras.layers.Dense(10)]
        return keras.Sequential([keras.Input((INPUTS,)), *layers])

    model = delayed_model(sgd(), Delayed(OneBit(min_size=0, bucket_bytes=64)), make)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Rank 1 met an infinity or NaN"):
        model.fit(batches(world_size, spoil=1), verbose=0)
    model.fit(batches(world_size, steps=3), verbose=0)
    assert_same_bits_on_all_ranks(arrays_of(model, model.optimizer))
    assert all(np.isfinite(w).all() for w in model.get_weights())


@over_horovod
def test_step_is_left_out_where_a_gradient_is_not_finite(world_size):
    optimizer = hvd.DistributedOptimizer(
        sgd(momentum=0.9)(), Delayed(FullPrecision()), on_nonfinite="skip"
    )
    model = compiled(make_model(), optimizer)
    model.fit(batches(world_size, spoil=2), verbose=0)
    whole = whole_batches(STEPS, world_size)
    expected = from_first(lambda: Late(sgd(momentum=0.9)).fit(whole[:2] + whole[3:]))
    assert_like(model, expected)


@over_horovod
def test_loops_of_ones_own_flush(world_size):
    model = delayed_model(sgd(), Delayed(OneBit(min_size=0)))
    fitted = delayed_model(sgd(), Delayed(OneBit(min_size=0)))
    monitor = Monitor(update_freq=1)
    history = fitted.fit(batches(world_size), verbose=0, callbacks=[monitor]).history
    for x, labels in batches(world_size):
        model.train_on_batch(x, labels)
    assert model.optimizer.iterations.numpy() == STEPS - 1
    flush(model.optimizer)  # many loops consist of this alone
    flush(model)  # of nothing
    assert_same_bits(model, fitted)
    plain = delayed_model(sgd(), OneBit(min_size=0))
    expected = plain.fit(batches(world_size), verbose=0, callbacks=[Monitor()]).history
    assert history["bytes_sent"] == expected["bytes_sent"]


@over_horovod
def test_tape_refuses_delay(world_size):
    with pytest.raises(ValueError, match="Leave Delayed out, or use .*DistributedOptimizer"):
        hvd.DistributedGradientTape(tf.GradientTape(), Delayed(OneBit()))
