"""The Monitor callback, as far as one worker shows it."""

import json
import time
import types

import keras
import numpy as np
import pytest

import tf_onebit
import tf_onebit.horovod as hvd
from tests.support.nightly import nightly, nightly_rows
from tests.support.scalars import descriptions_in, scalars_in, scalars_named
from tests.support.two_optimizers import TwoOptimizers
from tf_onebit import OneBit
from tf_onebit._bmuf.connections import connect
from tf_onebit._monitor import tensorboard
from tf_onebit._monitor.cost_warning import ExchangeCost
from tf_onebit._monitor.step_times import StepTimes
from tf_onebit._training.gradient_exchange import GradientExchange
from tf_onebit._training.recorder import Recorder
from tf_onebit.callbacks import Monitor
from tf_onebit.collectives.lockstep import LockstepEngine
from tf_onebit.exchanges.stages import Stages

LOGS = ["bytes_sent", "compression_ratio", "residual_norm"]
BATCHES = 6


@pytest.fixture(autouse=True, scope="module")
def one_worker():
    hvd.init()


class Counting(keras.Sequential):
    """A model that counts how often its training step is traced."""

    traces = 0

    def train_step(self, data):
        self.traces += 1
        return super().train_step(data)


def make_model(optimizer=None, **arguments):
    keras.utils.set_random_seed(0)
    model = Counting([keras.Input([4]), keras.layers.Dense(2)])
    if optimizer is None:
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), tf_onebit.OneBit())
    model.compile(optimizer, loss="mse", **arguments)
    return model


def exchanging_model(**arguments):
    """Returns a model that exchanges messages, although it is alone."""
    template = tf_onebit.OneBit(transforms=[tf_onebit.transforms.Momentum(0.9)])
    optimizer = keras.optimizers.SGD(0.1, **arguments)
    return make_model(hvd.DistributedOptimizer(optimizer, template))


def fit_model(model, callbacks, epochs=1):
    x, y = np.ones([BATCHES, 4]), np.ones([BATCHES, 2])
    return model.fit(x, y, batch_size=1, epochs=epochs, callbacks=callbacks, verbose=0)


def fit(monitor, optimizer=None, epochs=1, callbacks=(), steps_per_execution=1):
    model = make_model(optimizer, steps_per_execution=steps_per_execution)
    return fit_model(model, [monitor, *callbacks], epochs)


class BatchLogs(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.batches = []

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append(dict(logs))


def test_epoch_logs_have_what_was_sent():
    history = fit(Monitor(), epochs=2).history
    assert {name: history[name] for name in LOGS} == {
        "bytes_sent": [0.0, 0.0],
        "compression_ratio": [1.0, 1.0],
        "residual_norm": [0.0, 0.0],
    }


def test_batch_logs_have_what_was_sent():
    seen = BatchLogs()
    fit(Monitor(update_freq=2), callbacks=[seen])
    assert len(seen.batches) == BATCHES
    assert all(set(LOGS) <= logs.keys() for logs in seen.batches)


@pytest.mark.parametrize(
    ("update_freq", "steps_per_execution", "steps"),
    [
        (9, 1, [1, 7]),
        (4, 2, [2, 6, 8, 12]),
        *nightly_rows(
            (1, 1, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
            (2, 1, [1, 3, 5, 7, 9, 11]),
            (1, 2, [2, 4, 6, 8, 10, 12]),
            (5, 3, [3, 9]),
        ),
    ],
)
def test_tensorboard_gets_a_scalar_every_so_many_batches_of_an_epoch(
    tmp_path, update_freq, steps_per_execution, steps
):
    monitor = Monitor(update_freq, log_dir=tmp_path)
    fit(monitor, epochs=2, steps_per_execution=steps_per_execution)
    values = {"bytes_sent": 0.0, "compression_ratio": 1.0, "residual_norm": 0.0}
    expected = [(step, f"exchange/{name}", values[name]) for step in steps for name in LOGS]
    written = [scalar for scalar in scalars_in(tmp_path) if scalar[1].startswith("exchange/")]
    assert written == expected


def test_figures_are_written_once_per_second(tmp_path, monkeypatch):
    now = iter([0.0, 0.9, 1.1, 1.1, 1.5, 1.5])
    monkeypatch.setattr(tensorboard, "time", types.SimpleNamespace(monotonic=lambda: next(now)))
    steps = tensorboard.Scalars(tmp_path)
    for step in range(3):
        steps.add(step, {"seconds": 0.5})
    steps._writer.flush()
    assert scalars_in(tmp_path) == [(0, "seconds", 0.5), (1, "seconds", 0.5)]
    steps.close()
    assert scalars_in(tmp_path) == [(step, "seconds", 0.5) for step in range(3)]


def test_nothing_is_written_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fit(Monitor(update_freq=1))
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_gets_times_and_what_steps_are_made_with(tmp_path):
    model = exchanging_model(gradient_accumulation_steps=2)
    model.optimizer.gradient_exchange.set_global_batch_size(64)
    monitor = Monitor(update_freq=1, log_dir=tmp_path, predicted_step_seconds=0.5)
    fit_model(model, [monitor])
    latest = {name: value for _, name, value in scalars_in(tmp_path)}
    assert latest["step/learning_rate"] == pytest.approx(0.1)
    assert latest["step/global_batch_size"] == 64
    assert latest["step/predicted_seconds"] == 0.5
    assert 0 < latest["exchange/work_seconds"] <= latest["exchange/seconds"]
    assert latest["exchange/seconds"] < latest["step/seconds"] < 1
    assert 0 <= latest["exchange/hidden_share"] <= 1
    for tag, (first, *others) in descriptions_in(tmp_path).items():
        assert first and not any(others), tag


def test_minibatch_size_is_that_of_the_data(tmp_path):
    data = tf_onebit.ResizableBatches((np.ones([12, 4]), np.ones([12, 2])), global_batch_size=3)
    monitor = Monitor(update_freq=1, log_dir=tmp_path)
    make_model().fit(data, callbacks=[monitor], verbose=0)
    assert set(scalars_named("step/global_batch_size", tmp_path)) == {3}


def test_first_step_which_is_traced_does_not_count(tmp_path):
    class Slow(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            time.sleep(0.6 if batch == 0 else 0)

    monitor = Monitor(update_freq=1, log_dir=tmp_path)
    fit(monitor, callbacks=[Slow()])
    seconds = scalars_named("step/seconds", tmp_path)
    assert len(seconds) == 1 and seconds[0] < 0.1


def test_fit_with_and_without_a_monitor_gives_the_same_bits():
    weights = []
    for callbacks in ([Monitor(update_freq=2)], []):
        model = exchanging_model()
        fit_model(model, callbacks)
        weights.append([w.tobytes() for w in model.get_weights()])
    assert weights[0] == weights[1]


def test_training_step_is_as_before_after_a_fit_with_a_monitor():
    model, monitor = exchanging_model(), Monitor()
    fit_model(model, [])
    function, traces = model.train_function, model.traces
    fit_model(model, [monitor])
    assert model.train_function is function
    assert model.traces > traces
    traces = model.traces
    fit_model(model, [])
    fit_model(model, [monitor])
    assert model.traces == traces  # each has been traced before
    assert monitor._timed_step.recorder.take() == {}


def test_training_step_is_as_before_also_after_a_fit_that_was_interrupted():
    class Interrupted(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise KeyboardInterrupt

    model, monitor = exchanging_model(), Monitor()
    fit_model(model, [])
    function = model.train_function
    with pytest.raises(KeyboardInterrupt):
        fit_model(model, [monitor, Interrupted()])
    fit_model(model, [monitor])
    assert model.train_function is function


def test_nothing_is_traced_anew_where_nothing_is_exchanged():
    model = make_model()
    fit_model(model, [])
    traces = model.traces
    fit_model(model, [Monitor()])
    assert model.traces == traces


def test_minibatch_size_is_that_of_an_update(tmp_path):
    data = tf_onebit.ResizableBatches((np.ones([12, 4]), np.ones([12, 2])), global_batch_size=3)
    model = exchanging_model(gradient_accumulation_steps=4)
    model.fit(data, callbacks=[Monitor(update_freq=1, log_dir=tmp_path)], verbose=0)
    assert set(scalars_named("step/global_batch_size", tmp_path)) == {12}


def test_figures_are_written_also_beside_keras_tensorboard(tmp_path):
    monitor = Monitor(update_freq=1, log_dir=tmp_path / "monitor")
    of_keras = keras.callbacks.TensorBoard(tmp_path / "keras", update_freq=50, profile_batch=0)
    for callbacks in ([monitor, of_keras], [of_keras, monitor]):
        fit_model(make_model(), callbacks)
    assert len(scalars_named("exchange/bytes_sent", tmp_path / "monitor")) == 2 * BATCHES


def test_batches_that_are_missing_in_the_last_execution_do_not_count(monkeypatch):
    ends, end = [], StepTimes.end

    def noting(times, batch):
        ends.append(batch)
        end(times, batch)

    monkeypatch.setattr(StepTimes, "end", noting)
    fit(Monitor(), epochs=2, steps_per_execution=4)
    assert ends == 2 * [3, BATCHES - 1]


def test_all_optimizers_of_a_model_are_shown(tmp_path):
    model = TwoOptimizers([keras.Input([4]), keras.layers.Dense(2)])
    template = tf_onebit.OneBit(transforms=[tf_onebit.transforms.Momentum(0.9)])
    optimizers = [
        hvd.DistributedOptimizer(keras.optimizers.SGD(rate), template) for rate in (0.1, 0.2)
    ]
    model.compile(*optimizers)
    monitor = Monitor(update_freq=1, log_dir=tmp_path, timeline=tmp_path / "trace.json")
    fit_model(model, [monitor])
    readings = [scalar for scalar in scalars_in(tmp_path) if scalar[1] == "step/learning_rate"]
    assert readings == [(step + 1, "step/learning_rate", pytest.approx(0.1)) for step in range(6)]
    events = json.loads((tmp_path / "trace.0.json").read_text())["traceEvents"]
    exchanged = [event["tid"] for event in events if event["name"] == "ENCODE"]
    assert sorted(exchanged.count(row) for row in set(exchanged)) == 2 * [BATCHES - 1]
    built = [exchange for optimizer in optimizers for exchange in optimizer.gradient_exchange.built]
    assert {type(bucket.stages) for exchange in built for bucket in exchange.buckets} == {Stages}


@pytest.mark.parametrize("accumulated", [2, *nightly(None)])
def test_size_of_a_batch_of_fit_is_shown(tmp_path, accumulated):
    model = exchanging_model(gradient_accumulation_steps=accumulated)
    x, y = np.ones([12, 4]), np.ones([12, 2])
    monitor = Monitor(update_freq=1, log_dir=tmp_path)
    model.fit(x, y, batch_size=3, callbacks=[monitor], verbose=0)
    sizes = set(scalars_named("step/global_batch_size", tmp_path))
    assert sizes == {3 * (accumulated or 1)}


def test_a_timeline_that_cannot_be_written_is_an_error_before_training(tmp_path):
    (tmp_path / "trace.0.json").mkdir()
    model = exchanging_model()
    with pytest.raises(OSError, match="trace.0.json"):
        fit_model(model, [Monitor(timeline=tmp_path / "trace.json")])
    assert model.optimizer.iterations == 0


def test_timeline_has_all_steps_but_the_first(tmp_path):
    began = time.time()
    fit_model(exchanging_model(), [Monitor(timeline=tmp_path / "trace.json")], epochs=2)
    events = json.loads((tmp_path / "trace.0.json").read_text())["traceEvents"]
    names = [event["name"] for event in events if event["ph"] == "X"]
    steps = 2 * BATCHES - 1
    assert {name: names.count(name) for name in ("STEP", "ENCODE", "ALLTOALL", "DECODE")} == {
        "STEP": steps,
        "ENCODE": steps,
        "ALLTOALL": steps,
        "DECODE": steps,
    }
    step, *_ = (event for event in events if event["name"] == "STEP")
    (encode,) = (
        event
        for event in events
        if event["name"] == "ENCODE" and 0 <= event["ts"] - step["ts"] < step["dur"]
    )
    assert encode["dur"] < step["dur"]
    assert began < 1e-6 * step["ts"] < time.time()


def test_timeline_has_what_came_before_an_error(tmp_path):
    class Failing(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        callbacks = [Monitor(timeline=tmp_path / "trace.json"), Failing()]
        fit_model(exchanging_model(), callbacks, epochs=2)
    events = json.loads((tmp_path / "trace.0.json").read_text())["traceEvents"]
    assert [event["name"] for event in events].count("STEP") == BATCHES - 1


def test_a_costly_exchange_is_told_once(monkeypatch):
    monkeypatch.setattr(ExchangeCost, "warning", "costs too much")
    with pytest.warns(UserWarning, match="costs too much") as caught:
        fit_model(exchanging_model(), [Monitor(update_freq=1)], epochs=2)
    assert len([w for w in caught if "costs too much" in str(w.message)]) == 1


@pytest.mark.parametrize("seconds", [0, -0.1])
def test_a_prediction_that_is_not_positive_is_refused(seconds):
    message = f"predicted_step_seconds must be a positive number .*predicted_step_seconds={seconds}"
    with pytest.raises(ValueError, match=message):
        Monitor(predicted_step_seconds=seconds)


@pytest.mark.parametrize("update_freq", [0, -1])
def test_an_update_freq_that_is_not_positive_is_refused(update_freq):
    message = f"update_freq must be a positive number of batches. .*update_freq={update_freq}"
    with pytest.raises(ValueError, match=message):
        Monitor(update_freq)


def test_an_optimizer_that_exchanges_nothing_is_refused():
    message = "Monitor needs an optimizer that exchanges gradients.*Compile the model in"
    with pytest.raises(ValueError, match=message):
        fit(Monitor(), optimizer=keras.optimizers.SGD(0.1))


def test_a_loop_of_the_models_own_can_be_watched():
    class WithALoopOfItsOwn(Counting):
        def fit(self, batches, callbacks):
            callbacks = keras.callbacks.CallbackList(callbacks, model=self)
            callbacks.on_train_begin()
            callbacks.on_epoch_begin(0)
            for number, (x, y) in enumerate(batches):
                callbacks.on_train_batch_begin(number)
                self.train_on_batch(x, y)
                callbacks.on_train_batch_end(number, {})
            callbacks.on_epoch_end(0)
            callbacks.on_train_end()

    model = WithALoopOfItsOwn([keras.Input([4]), keras.layers.Dense(2)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), tf_onebit.OneBit()), "mse")
    seen = BatchLogs()
    model.fit(2 * [(np.ones([1, 4]), np.ones([1, 2]))], [Monitor(), seen])
    assert [set(logs) for logs in seen.batches] == 2 * [set(LOGS)]


def test_blocks_of_a_fit_before_are_not_those_of_this_one():
    now = time.monotonic_ns()
    blocks = types.SimpleNamespace(latest=[(now - 10**9, now)])
    exchange = GradientExchange(OneBit(), LockstepEngine(["CPU:0"]), mean=True)
    connect(exchange, blocks)
    times = StepTimes([exchange], Recorder(), timeline=None)
    assert times.read(1) == {}
    now = time.monotonic_ns()
    blocks.latest.append((now, now + 2 * 10**9))
    assert times.read(1) == {"exchange/synchronization_seconds": 2.0}
