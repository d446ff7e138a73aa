"""AutoMinibatchSize in `fit`, in one process."""

import re
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_onebit.horovod as hvd
from tests.support import tuned
from tests.support.bits import assert_same_bits
from tests.support.nightly import nightly, nightly_rows
from tests.support.tuned import (
    At,
    Interruption,
    make_model,
    make_small_model,
    samples,
    state_of,
    untrained,
)
from tf_onebit import OneBit, ResizableBatches, optimizers
from tf_onebit.callbacks import (
    AutoLearningRate,
    AutoMinibatchSize,
    BackupAndRestore,
    learning_rate_factor,
)
from tf_onebit.transforms import Momentum, NormalizedAdaGrad

ANYTHING_GOES, NOTHING_GOES = 1e9, 0.0


def batches(size=8, data=None):
    return tuned.batches(size, data=data)


def tuning(data, interval_samples=192, trial_samples=96, multiple=2, **arguments):
    return AutoMinibatchSize(data, interval_samples, trial_samples, multiple=multiple, **arguments)


def fit(model, data, callbacks=(), epochs=2):
    return model.fit(data, epochs=epochs, callbacks=list(callbacks), verbose=0).history


@pytest.mark.parametrize("steps_per_execution", [2, *nightly(1)])
def test_a_search_leaves_no_trace(steps_per_execution):
    """If the size stays, weights, optimizer and logs are as if nothing had been tried."""
    plain = make_model(steps_per_execution=steps_per_execution)
    expected, expected_numbers = fit(plain, batches()), drawn()
    data, model = batches(), make_model(steps_per_execution=steps_per_execution)
    callback = tuning(data, max_size=8, error_margin=ANYTHING_GOES)
    assert fit(model, data, [callback]) == expected
    tried = [[size for size, _ in trials] for trials in callback.history["trials"]]
    assert tried == [[], [4, 6, 8], [4, 6, 8], [4, 6, 8]]
    assert_same_bits(state_of(model), state_of(plain))
    assert drawn() == expected_numbers


def drawn():
    """Returns the next random numbers of a program's generators."""
    return np.random.rand(), float(keras.random.uniform([]))


def slow_sgd():
    return keras.optimizers.SGD(0.01)


def slow_adam():
    return keras.optimizers.Adam(0.01)


@pytest.mark.parametrize(
    ("make_optimizer", "power"), [(slow_adam, 0.5), *nightly_rows((slow_sgd, 1))]
)
def test_criterion_is_that_of_training_with_this_size_from_there(make_optimizer, power):
    """It includes the learning rate of this size, on the samples that come next."""
    data = batches()
    callback = tuning(data, trial_samples=192, multiple=4, error_margin=ANYTHING_GOES)
    fit(untrained(make_optimizer), data, [callback], epochs=1)
    (trials,) = callback.history["trials"][1:]
    assert [size for size, _ in trials] == [4, 8, 12, 16]
    for size, criterion in trials:
        data, model = batches(), untrained(make_optimizer)

        def change(model, data=data, size=size):
            data.resize(size)
            model.optimizer.learning_rate = 0.01 * (size / 8) ** power
            model.reset_metrics()  # so that the epoch's loss begins here

        history = fit(model, data, [At(data, 192, change)], epochs=1)
        assert criterion == pytest.approx(history["loss"][0], rel=1e-6)


@pytest.mark.parametrize(
    "learning_rate",
    [keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.9), *nightly(0.1)],
    ids=["schedule", "number"],
)
def test_learning_rate_per_sample_stays(learning_rate):
    data = batches()
    model = make_small_model(keras.optimizers.SGD(learning_rate, momentum=0.5, weight_decay=0.01))
    callback = tuning(data, max_size=16, trial_samples=192, error_margin=ANYTHING_GOES)
    fit(model, data, [callback], epochs=1)
    assert callback.history["global_batch_size"] == [8, 16]

    class Doubled(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            rate = learning_rate if isinstance(learning_rate, float) else learning_rate(step)
            return rate * tf.where(step < 24, 1.0, 2.0)  # 192 samples are 24 steps of 8

    data, expected = (
        batches(),
        make_small_model(keras.optimizers.SGD(Doubled(), momentum=0.5, weight_decay=0.01)),
    )
    fit(expected, data, [At(data, 192, lambda model: data.resize(16))], epochs=1)
    assert_same_bits(model.get_weights(), expected.get_weights())
    rates = callback.history["learning_rate"]
    at_search = learning_rate if isinstance(learning_rate, float) else float(learning_rate(24))
    assert rates == pytest.approx([0.1, 2 * at_search])


def sgd(momentum):
    return keras.optimizers.SGD(0.1, momentum=momentum)


def adagrad(momentum):
    return optimizers.NormalizedAdaGrad(0.1, 1e4, 8, momentum=momentum)


@pytest.mark.parametrize(
    ("make_optimizer", "first"), [(sgd, []), *nightly_rows((adagrad, [NormalizedAdaGrad(1e4, 8)]))]
)
def test_momentum_follows_the_size(make_optimizer, first):
    """An exchange sums up gradients. An optimizer sums up gradients or, as Keras' SGD, steps."""

    def train(make_optimizer):
        data, model = batches(), make_small_model(make_optimizer(hvd.DistributedOptimizer))
        callback = tuning(data, trial_samples=192, min_size=8, error_margin=ANYTHING_GOES)
        fit(model, data, [callback], epochs=1)
        assert callback.history["global_batch_size"] == [8, 16]
        return model.get_weights(), callback.history["trials"][1]

    hvd.init()
    exchange = OneBit(transforms=[*first, Momentum(0.9)])
    expected, expected_trials = train(lambda _: make_optimizer(momentum=0.9))
    weights, trials = train(lambda distributed: distributed(sgd(momentum=0.0), exchange))
    for mine, theirs in zip(weights, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(trials, expected_trials, rtol=1e-4)


def test_learning_rate_of_others_is_scaled_and_left_to_them():
    """A schedule in a callback sets numbers without the factor, and reads them so."""
    seen = []

    def schedule(epoch, rate):
        seen.append(rate)
        return 0.1 if epoch == 0 else rate / 2

    data, model = batches(), untrained()
    callback = tuning(data, max_size=16, trial_samples=192, error_margin=ANYTHING_GOES)
    fit(model, data, [callback, keras.callbacks.LearningRateScheduler(schedule)])
    np.testing.assert_allclose(seen, [0.1, 0.1])
    np.testing.assert_allclose(model.optimizer.learning_rate, 0.05)
    # The second search is in the second epoch.
    np.testing.assert_allclose(callback.history["learning_rate"], [0.1, 0.2, 0.1, 0.1])
    assert callback.history["position"] == [0, 192, 384, 576]


@pytest.mark.parametrize("rate_first", [True, *nightly(False)])
def test_factor_is_in_force_in_fit_only_and_goes_on_in_the_next(rate_first):
    data, model = batches(), untrained()
    size = tuning(data, 192, 192, max_size=16, error_margin=ANYTHING_GOES)
    rate = AutoLearningRate(samples(), 384, min_improvement=1e9)
    rate._control.decide(1.0)  # so that the next evaluation reduces
    callbacks = [rate, size] if rate_first else [size, rate]
    fit(model, data, callbacks, epochs=1)
    assert size.history["learning_rate"] == pytest.approx([0.1, 0.2])
    assert rate.history["learning_rate"][-1] == pytest.approx(0.1)  # halved, at size 16
    assert learning_rate_factor.factors(model) == [1.0]
    fit(model, data, callbacks, epochs=1)
    assert learning_rate_factor.factors(model) == [1.0]
    assert size.history["learning_rate"][-1] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("error_margin", "sizes"), [(ANYTHING_GOES, [8, 12, 16, 16]), (NOTHING_GOES, None)]
)
def test_size_grows_and_shrinks_within_fit(error_margin, sizes):
    """Every sample is trained on once per epoch, in any number of steps."""
    seen = []

    class Seen(keras.layers.Layer):
        def call(self, x, training=False):
            if training:
                tf.py_function(lambda rows: seen.append(rows.numpy()), [x[:, 0]], [])
            return x

    x, labels = samples()
    x[:, 0] = np.arange(len(x))
    data = batches(data=(x, labels))
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [Seen(), keras.layers.Rescaling(1e-3), keras.layers.Dense(4, activation="softmax")]
    )
    # With a rate this high, large minibatches are worse.
    model.compile(keras.optimizers.SGD(0.5), "sparse_categorical_crossentropy")
    callback = tuning(data, trial_samples=192, max_size=16, error_margin=error_margin)
    marks = []
    begin = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: marks.append(len(seen))
    )
    fit(model, data, [callback, begin], epochs=2)
    # Only steps that the other callback was told of are training.
    trained = np.concatenate([seen[mark] for mark in marks])
    assert sorted(trained) == sorted([*range(len(x))] * 2)
    assert int(model.optimizer.iterations) == len(marks)
    assert len(set(callback.history["global_batch_size"])) > 1


def test_largest_feasible_size_is_taken():
    data = batches()
    callback = tuning(data, trial_samples=192, error_margin=0.01)
    criteria = iter([1.0, 1.005, 1.0099, 1.02, 0.5])
    callback._criterion = lambda size: next(criteria)
    fit(untrained(), data, [callback], epochs=1)
    assert callback.history["trials"][1] == [(4, 1.0), (6, 1.005), (8, 1.0099), (12, 1.02)]
    assert callback.history["global_batch_size"] == [8, 8]


def test_nothing_is_traced_for_trials():
    traces = []

    class Traced(keras.layers.Layer):
        def call(self, x):
            traces.append(x.shape)
            return x

    counts = []
    for searches in (False, True):
        traces.clear()
        model = keras.Sequential([Traced(), keras.layers.Dense(4)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        data = batches()
        callbacks = [tuning(data, max_size=16, error_margin=ANYTHING_GOES)] if searches else []
        fit(model, data, callbacks)
        counts.append(len(traces))
    assert counts[0] == counts[1] > 0


def test_other_callbacks_see_no_trials():
    counts = []
    for searches in (False, True):
        calls = []
        other = keras.callbacks.LambdaCallback(
            on_train_batch_begin=lambda batch, logs, calls=calls: calls.append(batch),
            on_train_batch_end=lambda batch, logs, calls=calls: calls.append(batch),
            on_test_begin=lambda logs, calls=calls: calls.append("test"),
        )
        data = batches()
        callback = tuning(data, max_size=8, error_margin=ANYTHING_GOES)
        fit(untrained(), data, [callback, other] if searches else [other])
        counts.append(len(calls))
    assert counts[0] == counts[1]


def test_search_waits_for_an_epoch_that_has_the_samples_of_a_trial():
    # Due at 256, when the epoch of 384 samples has 128 left; 160 are needed.
    data = batches()
    callback = tuning(data, 256, 160, max_size=8, error_margin=ANYTHING_GOES)
    fit(untrained(), data, [callback], epochs=3)
    assert callback.history["position"] == [0, 384, 768]


def test_search_that_waits_goes_on_waiting_when_it_is_resumed(tmp_path):
    def train(*callbacks, directory=tmp_path / "other"):
        data = batches()
        callback = tuning(data, 256, 160, max_size=8, error_margin=ANYTHING_GOES)
        backup = BackupAndRestore(directory, save_freq=1)
        fit(untrained(), data, [callback, backup, *callbacks], epochs=2)
        return callback.history

    expected = train()
    with pytest.raises(InterruptedError):
        train(Interruption(40), directory=tmp_path / "backups")  # at 320 samples
    assert train(directory=tmp_path / "backups") == expected


def test_data_of_unknown_length():
    dataset = tf.data.Dataset.from_tensor_slices(samples()).batch(10).filter(lambda *_: True)
    data = batches(data=dataset)
    assert data.samples is None
    callback = tuning(data, 256, 160, max_size=8, error_margin=ANYTHING_GOES)
    fit(untrained(), data, [callback], epochs=3)
    assert callback.history["position"] == [0, 384, 768]


def test_data_of_unknown_length_with_too_few_samples_for_a_trial():
    """They are refused when training begins. Later, training continues without searches."""
    dataset = tf.data.Dataset.from_tensor_slices(samples()).batch(10).filter(lambda *_: True)
    data = batches(data=dataset)
    with pytest.raises(ValueError, match="trial_samples=400, and an epoch of 384 samples"):
        fit(untrained(), data, [tuning(data, 500, 400)], epochs=3)
    assert data.position == 0
    data = batches(data=dataset)
    fit(untrained(), data, [At(data, 8, stop)])  # in the middle of an epoch
    callback = tuning(data, 500, 400)
    with pytest.warns(UserWarning, match="size stays 8. An epoch must have at least the samples"):
        fit(untrained(), data, [callback], epochs=3)
    assert data.position == 3 * 384
    assert len(callback.history["position"]) == 1


def stop(model):
    model.stop_training = True


@pytest.mark.parametrize(("is_stream", "expected"), [(False, 0), (True, 4)])
def test_search_that_waits_looks_at_the_data_once_per_epoch(is_stream, expected):
    dataset = tf.data.Dataset.from_tensor_slices(samples()).batch(10).filter(lambda *_: True)
    data = batches(data=dataset if is_stream else None)
    callback = tuning(data, 256, 160, max_size=8, error_margin=ANYTHING_GOES)
    peek, looks = data.peek, []

    def peek_noting(samples, size):
        looks.append(size)
        return peek(samples, size)

    data.peek = peek_noting
    fit(untrained(), data, [callback], epochs=2)
    assert callback.history["position"] == [0, 384]
    # At the beginning, at 256, at 384 (with a trial), and at 640.
    assert len([size for size in looks if size > 8]) == expected


def test_training_that_ends_searches_no_more():
    data = batches()
    callback = tuning(data)
    fit(untrained(), data, [At(data, 192, stop), callback])
    assert callback.history["position"] == [0]


def test_trial_has_ten_updates_also_where_gradients_are_accumulated():
    def model():
        return make_small_model(keras.optimizers.SGD(0.1, gradient_accumulation_steps=4))

    data = batches(4)
    callback = tuning(data, trial_samples=192, multiple=1, error_margin=ANYTHING_GOES)
    fit(model(), data, [callback], epochs=1)
    assert [size for size, _ in callback.history["trials"][1]] == [2, 3, 4]
    with pytest.raises(ValueError, match="at least 40 minibatches.*trial_samples=152"):
        fit(model(), data, [tuning(data, trial_samples=152)], epochs=1)


class OwnStep(keras.Model):
    """A model whose step returns a value that no metric follows."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(4)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, labels = data
        with tf.GradientTape() as tape:
            losses = keras.ops.sparse_categorical_crossentropy(labels, self(x), from_logits=True)
            loss = tf.reduce_mean(losses)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {self.name_of_loss: loss}


@pytest.mark.parametrize("monitor", ["loss", "own_loss"])
def test_criterion_that_no_metric_follows_is_the_mean_over_the_trial(monitor):
    """In a model that does not learn, this is the mean over its samples, for all sizes."""
    data, model = batches(), OwnStep()
    model.name_of_loss = monitor
    model.compile(keras.optimizers.SGD(0.0), run_eagerly=True)
    callback = tuning(data, 128, 104, monitor=monitor, error_margin=ANYTHING_GOES)
    fit(model, data, [callback], epochs=1)
    (first, *others) = [criterion for _, criterion in callback.history["trials"][1]]
    assert others and first > 0
    assert others == pytest.approx([first] * len(others), rel=1e-6)


def test_a_model_compiled_anew_has_no_trace_of_a_search_that_is_due_at_once():
    data, model, states = batches(), make_small_model(sgd(0.9)), []
    callback = tuning(data, 384, max_size=8, error_margin=ANYTHING_GOES)
    fit(model, data, [callback], epochs=1)
    model.compile(sgd(0.9), model.loss)
    look = At(data, 384, lambda model: states.append(state_of(model)))
    fit(model, data, [callback, look], epochs=1)
    assert callback.history["position"] == [0, 384]
    velocities = states[0][len(model.variables) + 2 :]
    assert velocities and not any(map(np.any, velocities))


@pytest.mark.parametrize("monitor", ["loss", "accuracy"])
def test_where_all_sizes_fail_the_model_is_as_before_and_the_size_the_smallest(monitor):
    data, states = batches(), []

    def diverge(model):
        model.optimizer.learning_rate = np.inf
        states.append(state_of(model))

    def stop(model):
        states.append(state_of(model))
        model.stop_training = True
        model.optimizer.learning_rate = 0.0

    callback = tuning(data, monitor=monitor)
    callbacks = [At(data, 192, diverge), callback, At(data, 192, stop)]
    with pytest.warns(UserWarning, match="not finite with any minibatch size.*: 4."):
        fit(untrained(), data, callbacks)
    assert np.isnan(callback.history["trials"][1][0][1])
    assert callback.history["global_batch_size"] == [8, 4]
    assert_same_bits(states[1], states[0])


def test_error_within_a_trial_leaves_everything_as_it_was():
    data, states, model = batches(), [], make_small_model()
    callback = tuning(data)

    def break_step(model):
        states.append(state_of(model))
        step, calls = model.train_function, []

        def breaking(minibatch):
            calls.append(None)
            if len(calls) == 3:
                raise InterruptedError("in the midst of a trial")
            return step(minibatch)

        model.train_function = breaking

    with pytest.raises(InterruptedError, match="in the midst of a trial"):
        fit(model, data, [At(data, 192, break_step), callback])
    assert_same_bits(state_of(model), states[0])
    assert (data.global_batch_size, data.position) == (8, 192)
    assert callback.history["global_batch_size"] == [8]
    assert learning_rate_factor.factors(model) == [1.0]


def with_momentum_in_the_exchange():
    hvd.init()
    return hvd.DistributedOptimizer(sgd(momentum=0.0), OneBit(transforms=[Momentum(0.5)]))


@pytest.mark.parametrize(
    ("backup_first", "step", "make", "epochs"),
    # A search is due after 24 steps.
    [
        (True, 25, lambda: make_small_model(with_momentum_in_the_exchange()), 2),
        *nightly_rows((False, 70, make_model, 3)),
    ],
    ids=["in the exchange", "late"],
)
def test_resumed_run_has_the_same_sizes_and_bits(backup_first, step, make, epochs, tmp_path):
    def train(*callbacks, directory=tmp_path / "other"):
        data, model = batches(), make()
        callback = tuning(data, trial_samples=192, error_margin=0.05)
        backup = BackupAndRestore(directory, save_freq=step - step % 2)
        tuned = [backup, callback] if backup_first else [callback, backup]
        history = fit(model, data, [*tuned, *callbacks], epochs=epochs)
        return state_of(model), callback.history, history

    state, sizes, logs = train()
    with pytest.raises(InterruptedError):
        train(Interruption(step), directory=tmp_path / "backups")
    resumed = train(directory=tmp_path / "backups")
    assert_same_bits(resumed[0], state)
    assert resumed[1] == sizes
    assert {name: values[-1:] for name, values in resumed[2].items()} == {
        name: values[-1:] for name, values in logs.items()
    }


@pytest.mark.parametrize("backup_first", [True, *nightly(False)])
def test_other_workers_go_on_with_a_size_that_they_can_share(backup_first, tmp_path):
    """The learning rate follows that size."""

    def train(workers, *callbacks):
        size = 2 * workers  # of the backup, if there is one
        data = ResizableBatches(samples(), size, seed=1, rank=0, world_size=workers)
        callback = tuning(data, 96, 96, multiple=1)
        backup = BackupAndRestore(tmp_path, save_freq=1)
        tuned = [backup, callback] if backup_first else [callback, backup]
        fit(untrained(), data, [*tuned, *callbacks], epochs=1)
        return callback.history

    with pytest.raises(InterruptedError):
        train(4, Interruption(8))
    with pytest.warns(UserWarning, match="have 9 samples from here on. The state has 8,"):
        history = train(3)
    assert history["global_batch_size"][:2] == [8, 9]
    assert history["position"][:3] == [0, 64, 100]
    expected = [0.1 * size / 8 for size in history["global_batch_size"]]
    assert history["learning_rate"] == pytest.approx(expected)


def test_epoch_resumed_at_its_very_end_keeps_its_logs(tmp_path):
    def train(*callbacks, directory=tmp_path / "other"):
        data = batches()
        backup = BackupAndRestore(directory, save_freq=48)  # an epoch has 48 steps
        return fit(untrained(), data, [backup, *callbacks])

    expected = train()
    with pytest.raises(InterruptedError):
        train(Interruption(48), directory=tmp_path / "backups")
    assert train(directory=tmp_path / "backups") == expected


def test_plot_shows_the_sizes(tmp_path):
    data = batches()
    callback = tuning(data, max_size=16, error_margin=ANYTHING_GOES)
    with pytest.raises(ValueError, match="nothing to plot before training"):
        callback.plot(tmp_path / "sizes.png")
    fit(untrained(), data, [callback])
    callback.plot(tmp_path / "sizes.svg")
    assert "minibatch size (samples)" in (tmp_path / "sizes.svg").read_text()


def test_plot_without_matplotlib_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="Run: pip install matplotlib"):
        tuning(batches()).plot(tmp_path / "sizes.png")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"data": samples()}, "Received: data of type tuple. Give tf_onebit.ResizableBatches"),
        ({"interval_samples": 95, "trial_samples": 96}, "must be at least trial_samples"),
        ({"interval_samples": 0}, "interval_samples=0"),
        ({"trial_samples": -1}, "trial_samples=-1"),
        ({"min_size": 64, "max_size": 32}, "must be at least min_size.*min_size=64, max_size=32"),
        ({"max_size": 1}, "max_size must be at least min_size.*max_size=1, multiple=2"),
        ({"min_size": 1.5}, "min_size=1.5"),
        ({"error_margin": -0.1}, "error_margin=-0.1"),
        ({"mode": "most"}, "mode='most'"),
        ({"monitor": "recall"}, "monitor='recall'"),
        ({"learning_rate_rule": "cubic"}, "learning_rate_rule='cubic'"),
    ],
)
def test_arguments_are_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        tuning(**({"data": batches()} | arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"monitor": "auc"}, r"monitor='auc', and logs with \['accuracy', 'loss'\]"),
        ({"trial_samples": 70}, "at least 10 minibatches.*trial_samples=70, and minibatches of 8"),
        (
            {"trial_samples": 96, "min_size": 10},
            "10, the smallest that min_size.*trial_samples=200,",
        ),
        ({"interval_samples": 999, "trial_samples": 400}, "and an epoch of 384 samples"),
        ({"min_size": 7, "max_size": 7}, "multiple of 2 from min_size to max_size"),
    ],
)
def test_sizes_are_checked_in_fit(arguments, message):
    data = batches()
    with pytest.raises(ValueError, match=message):
        fit(untrained(), data, [tuning(data, **arguments)])


@pytest.mark.parametrize(
    ("trial_samples", "max_size", "warns"), [(96, None, True), (96, 8, False), (100, None, False)]
)
def test_trials_too_short_to_grow_are_warned_about(trial_samples, max_size, warns, recwarn):
    data = batches()
    fit(untrained(), data, [tuning(data, 384, trial_samples, max_size=max_size)], epochs=1)
    texts = [str(warning.message) for warning in recwarn]
    expected = "more than 8 samples are not tried.*trial_samples=96. Use trial_samples=160,"
    assert any(re.search(expected, text) for text in texts) == warns


def test_fit_must_have_the_same_data():
    data = batches()
    for other in (batches(), tf.data.Dataset.from_tensor_slices(samples()).batch(8)):
        with pytest.raises(ValueError, match="the same ResizableBatches as AutoMinibatchSize"):
            fit(untrained(), other, [tuning(data)])


def test_unknown_optimizer_needs_a_rule():
    class Mine(keras.optimizers.Optimizer):
        def update_step(self, gradient, variable, learning_rate):
            self.assign_sub(variable, gradient * keras.ops.cast(learning_rate, gradient.dtype))

    data = batches()
    with pytest.raises(ValueError, match="the optimizer Mine. Use learning_rate_rule="):
        fit(make_small_model(Mine(0.1)), data, [tuning(data)])
    callback = tuning(data, max_size=16, learning_rate_rule="sqrt", error_margin=ANYTHING_GOES)
    fit(make_small_model(Mine(0.1)), data, [callback], epochs=1)
