"""AutoLearningRate in `fit`, in one process."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_onebit.horovod as hvd
from tests.support.bits import assert_same_bits
from tests.support.gradients import build_workers
from tests.support.nightly import nightly
from tests.support.scalars import scalars_named
from tests.support.tuned import (
    At,
    Interruption,
    batches,
    make_model,
    make_small_model,
    samples,
    state_of,
    untrained,
)
from tf_onebit import OneBit
from tf_onebit.callbacks import AutoLearningRate, AutoMinibatchSize, BackupAndRestore, Monitor
from tf_onebit.exchanges import GradientSpec
from tf_onebit.exchanges.bucketed import Bucketed
from tf_onebit.transforms import Momentum


def control(criteria=None, interval_samples=96, beginning=10.0, **arguments):
    """Returns a callback with given criteria, the first for the beginning, or one that measures."""
    x, labels = samples()
    callback = AutoLearningRate((x[:64], labels[:64]), interval_samples, **arguments)
    if criteria is not None:
        given = iter([beginning, *criteria])
        callback._criterion = lambda: next(given)
    return callback


def fit(model, data, callbacks, epochs=1, **arguments):
    return model.fit(data, epochs=epochs, callbacks=callbacks, verbose=0, **arguments).history


def test_learning_rate_follows_the_criterion():
    callback = control([1.0, 0.9, 0.899, 0.8], min_improvement=0.01)
    fit(untrained(), batches(), [callback])
    assert callback.history["position"] == [96, 192, 288, 384]
    assert callback.history["criterion"] == [1.0, 0.9, 0.899, 0.8]
    np.testing.assert_allclose(callback.history["learning_rate"], [0.1, 0.1, 0.05, 0.05])
    assert callback.history["reverted"] == [False] * 4


def test_monitor_shows_the_reduced_learning_rate(tmp_path):
    hvd.init()
    callback = control([1.0, 0.9, 0.899, 0.8], min_improvement=0.01)
    model = make_small_model(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), OneBit()))
    fit(model, batches(), [callback, Monitor(update_freq=1, log_dir=tmp_path)])
    rates = scalars_named("step/learning_rate", tmp_path)
    # 288 samples are 9 steps.
    np.testing.assert_allclose(rates, [0.1] * 9 + [0.05] * 3, rtol=1e-6)


def test_learning_rate_of_the_steps_is_the_reduced_one():
    """Schedules continue below the factor."""
    decay = keras.optimizers.schedules.InverseTimeDecay(0.1, 1, 0.1)
    callback = control([1.0, 1.0, 0.1, 0.1], factor=0.25, min_improvement=0.01)
    model = make_small_model(keras.optimizers.SGD(decay, momentum=0.9))
    fit(model, batches(), [callback])

    class Reduced(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):  # 192 samples are 6 steps
            return decay(step) * keras.ops.where(step < 6, 1.0, 0.25)

    expected = make_small_model(keras.optimizers.SGD(Reduced(), momentum=0.9))
    fit(expected, batches(), [])
    assert_same_bits(model.get_weights(), expected.get_weights())


@pytest.mark.parametrize("worse", [np.nan, *nightly(2.0)])
def test_model_goes_back_to_its_best(worse):
    data, model, states = batches(), make_model(), {}

    def note(name):
        return lambda model: states.update({name: state_of(model)})

    callback = control([1.0, worse, 0.5, 0.4], min_improvement=0.0)
    before, after = At(data, 192, note("before")), At(data, 192, note("after"))
    fit(model, data, [At(data, 96, note("best")), before, callback, after])
    trained = len(model.trainable_variables) + len(model.non_trainable_variables)
    variables = [*model.variables, *model.optimizer.variables]
    learned = {id(v) for v in (*model.weights, *model.optimizer.variables)}
    changed = 0
    for i, variable in enumerate(variables):
        kept = "best" if id(variable) in learned else "before"  # metrics and generators go on
        np.testing.assert_array_equal(states["after"][i], states[kept][i])
        changed += not np.array_equal(states["before"][i], states["best"][i])
    assert changed > trained / 2
    np.testing.assert_allclose(callback.history["learning_rate"], [0.1, 0.05, 0.05, 0.05])
    assert callback.history["reverted"] == [False, True, False, False]


@pytest.mark.parametrize(("beginning", "first"), [(1.0, 2.0), (1.0, np.nan), (np.nan, np.nan)])
def test_first_evaluation_that_is_worse_leads_back_to_the_beginning(beginning, first):
    model, data, weights = untrained(), batches(), []
    initial = model.get_weights()
    seen = At(data, 96, lambda model: weights.append(model.get_weights()))
    callback = control([first, 0.9, 0.8, 0.7], beginning=beginning)
    fit(model, data, [callback, seen])
    assert_same_bits(weights[0], initial)
    assert callback.history["reverted"] == [True, False, False, False]
    np.testing.assert_allclose(callback.history["learning_rate"], [0.05] * 4)


def test_model_that_the_first_interval_ruins_goes_back():
    """The criteria are measured here."""
    model, data = make_small_model(keras.optimizers.SGD(1e4)), batches()
    x, labels = samples()
    before = model.evaluate(x, labels, verbose=0)
    callback = control(interval_samples=192)
    fit(model, data, [callback])
    assert callback.history["reverted"] == [True, True]
    assert model.evaluate(x, labels, verbose=0) == before


def test_model_that_has_diverged_goes_back_whatever_its_accuracy():
    """With NaN, all samples are predicted to be of the first class, and some of them are."""
    model, data, weights = make_small_model(keras.optimizers.SGD(0.0)), batches(), []
    kernel, _ = model.get_weights()
    initial = [kernel, np.float32([-1e4, 0, 0, 0])]  # none is of the first class
    model.set_weights(initial)
    nan = [np.full_like(array, np.nan) for array in initial]
    callback = control(monitor="accuracy")
    x, labels = callback.validation_data
    callback.validation_data = x, np.zeros_like(labels)
    seen = At(data, 96, lambda model: weights.append(model.get_weights()))
    fit(model, data, [At(data, 32, lambda model: model.set_weights(nan)), callback, seen])
    assert callback.history["reverted"][0] and np.isnan(callback.history["criterion"][0])
    assert_same_bits(weights[0], initial)


def test_a_model_compiled_anew_goes_back_to_what_its_new_optimizer_has_learned():
    data, model, weights = batches(), make_small_model(keras.optimizers.SGD(0.1, momentum=0.9)), []
    callback = control([1.0, 0.9, 0.8, 0.7, 2.0, 3.0, 1.0, 0.9, 0.8])  # 2.0 is the new beginning
    fit(model, data, [callback])
    model.compile(keras.optimizers.Adam(0.01), model.loss, run_eagerly=True)
    seen = [At(data, at, lambda model: weights.append(model.get_weights())) for at in (384, 480)]
    fit(model, data, [callback, *seen])
    assert callback.history["reverted"] == [*4 * [False], True, *3 * [False]]
    assert_same_bits(weights[1], weights[0])


def test_gradients_not_sent_yet_go_back_to_the_size_there_is_now():
    """Velocities of means over 8 samples count half as much in minibatches of 16."""
    hvd.init()
    exchange = OneBit(min_size=0, transforms=[Momentum(0.9)])
    model = make_small_model(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), exchange))
    data, velocities = batches(8), []

    def note(model):
        (states,) = model.optimizer.gradient_exchange.carried.states()
        velocities.append([v for name, v in states[0].items() if "transform" in name])

    tuning = AutoMinibatchSize(data, 192, 192, min_size=8, multiple=8)
    tuning._criterion = lambda size: 1.0
    rate = control([1.0, 2.0], interval_samples=160)
    fit(model, data, [At(data, 160, note), rate, tuning, At(data, 320, note)])
    assert tuning.history["global_batch_size"] == [8, 16]
    assert rate.history["reverted"] == [False, True]
    best, now = velocities
    assert any(np.any(velocity) for velocity in best)
    for old, new in zip(best, now, strict=True):
        np.testing.assert_array_equal(new, old / 2)


def test_states_of_other_workers_are_kept_when_they_are_shared_out():
    """This holds after a step. Before, this worker's part of the best model is not there yet."""
    hvd.init()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), OneBit(min_size=0))
    model, data, weights = make_small_model(optimizer), batches(), []
    specs = [GradientSpec(v.path, tuple(v.shape), "float32") for v in model.trainable_variables]
    states = [worker.state() for worker in build_workers(Bucketed(OneBit(min_size=0)), specs, 2)]

    def resume(model):
        optimizer.gradient_exchange.load_states([states], 0.5)

    callback = control([np.nan] * 4, interval_samples=192)
    note = [At(data, at, lambda model: weights.append(model.get_weights())) for at in (32, 192)]
    fit(model, data, [At(data, 0, resume), note[0], callback, note[1]])
    assert callback.history["position"] == [192, 384]
    assert_same_bits(weights[1], weights[0])


class Drawing(keras.utils.PyDataset):
    """Held-out data that are augmented."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        x, labels = samples()
        return x[:32] + np.random.normal(size=[32, 1]).astype(np.float32), labels[:32]


@pytest.mark.parametrize("make", [make_model, *nightly(make_small_model)])
def test_evaluation_leaves_logs_and_random_numbers_alone(make):
    """This includes the evaluation before the first step, of a model that is built."""
    expected = fit(plain := make(), batches(), [])
    expected_number = np.random.rand()
    callback = AutoLearningRate(Drawing(), interval_samples=96, min_improvement=0.0)
    callback._control.decide = lambda criterion: type(
        "Nothing", (), dict.fromkeys(("keep", "revert", "reduce", "stop"), False)
    )
    assert fit(model := make(), batches(), [callback]) == expected
    assert_same_bits(state_of(model), state_of(plain))
    assert np.random.rand() == expected_number
    assert len(set(callback.history["criterion"])) == 4


def test_criterion_is_that_of_evaluate():
    callback, data, expected = control(monitor="val_accuracy"), batches(), []

    def evaluate(model):
        x, labels = samples()
        expected.append(model.evaluate(x[:64], labels[:64], verbose=0, return_dict=True))

    fit(untrained(), data, [At(data, 96, evaluate), callback])
    assert callback.history["criterion"][0] == pytest.approx(expected[0]["accuracy"])


def test_learning_rate_is_not_reduced_below_the_least():
    callback = control([1.0] * 4, min_learning_rate=0.04)
    fit(untrained(), batches(), [callback])
    np.testing.assert_allclose(callback.history["learning_rate"], [0.1, 0.05, 0.04, 0.04])


def test_patience_ends_training_with_the_best_model():
    model, data, best = untrained(), batches(), []
    callback = control([0.5, 0.8, 0.9, 0.1], patience=2)
    seen = At(data, 96, lambda model: best.append(model.get_weights()))
    fit(model, data, [callback, seen], epochs=3)
    assert callback.history["position"] == [96, 192, 288]
    assert_same_bits(model.get_weights(), best[0])


@pytest.mark.parametrize("backup_first", [True, False])
def test_run_that_patience_has_ended_does_not_go_on_when_it_is_resumed(backup_first, tmp_path):
    """The kill comes after Keras' step after the decision, before the best model is back."""

    def train(*callbacks):
        model, data, best = untrained(), batches(), []
        seen = At(data, 96, lambda model: best.append(model.get_weights()))
        rate = control([0.5, 0.8, 0.9, 0.1, 0.1], patience=2)
        backup = BackupAndRestore(tmp_path, save_freq=1, delete_checkpoint=False)
        callbacks = [*callbacks, *([backup, rate] if backup_first else [rate, backup]), seen]
        try:
            fit(model, data, callbacks, epochs=3)
        except InterruptedError:
            pass
        return model.get_weights(), best, data.position

    _, best, _ = train(Interruption(10))  # nine backups, and the decision before step 10
    for _ in range(2):
        weights, _, position = train()
        assert_same_bits(weights, best[0])
    assert position <= 352


class AtEndOfEpoch(keras.callbacks.Callback):
    """A callback that notes the weights that are saved at the end of each epoch."""

    def __init__(self):
        super().__init__()
        self.weights = []

    def on_epoch_end(self, epoch, logs=None):
        self.weights.append(self.model.get_weights())


def test_best_model_is_validated_and_saved_when_patience_ends_training():
    model, data, best = untrained(), batches(), []
    seen = At(data, 96, lambda model: best.append(model.get_weights()))
    saved, callback = AtEndOfEpoch(), control([0.5, 0.8, 0.9], patience=2)
    x, labels = samples()
    history = fit(model, data, [saved, callback, seen], validation_data=(x, labels))
    assert_same_bits(saved.weights[0], best[0])
    assert history["val_loss"] == [model.evaluate(x, labels, batch_size=32, verbose=0)[0]]


@pytest.mark.parametrize(("criteria", "patience"), [([0.5, 0.8], 1), ([0.9, 0.8, 0.5, 5.0], None)])
def test_averages_of_weights_are_the_model_in_the_end(criteria, patience):
    """They are averages of the best model. Keras puts them into the weights when training ends."""
    optimizer, averages = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5), []
    model, data = make_small_model(optimizer), batches()

    def note(model):
        averages.append([v.numpy() for v in optimizer._model_variables_moving_average])

    best = At(data, 96 * (criteria.index(0.5) + 1), note)
    fit(model, data, [control(criteria, patience=patience), best])
    assert_same_bits(model.get_weights(), averages[0])


def test_criterion_at_the_end_of_training_counts():
    model, data, best = untrained(), batches(), []
    callback = control([1.0, 0.9, 0.8, 5.0])
    seen = At(data, 288, lambda model: best.append(model.get_weights()))
    fit(model, data, [callback, seen])
    assert callback.history["position"][-1] == 384
    assert_same_bits(model.get_weights(), best[0])


def test_any_data_of_which_the_size_of_a_step_is_known():
    callback = control([1.0, 0.9, 0.8, 0.7], interval_samples=100, global_batch_size=32)
    x, labels = samples()
    untrained().fit(x, labels, batch_size=32, callbacks=[callback], verbose=0)
    assert callback.history["position"] == [128, 256, 384]
    with pytest.raises(ValueError, match="global_batch_size=None, and data of type ndarray"):
        untrained().fit(x, labels, callbacks=[control()], verbose=0)


def test_both_callbacks_are_resumed_with_the_same_bits(tmp_path):
    def train(directory, *callbacks):
        data, model = batches(8), make_model(keras.optimizers.SGD(0.4, momentum=0.5))
        x, labels = samples()
        rate = AutoLearningRate((x[:64], labels[:64]), 64, "accuracy", min_improvement=0.01)
        size = AutoMinibatchSize(data, 128, 96, multiple=2, error_margin=0.05)
        backup = BackupAndRestore(directory, save_freq=2)
        history = fit(model, data, [rate, backup, size, *callbacks], epochs=2)
        assert any(rate.history["reverted"])
        return state_of(model), rate.history, size.history, history["loss"][-1]

    expected = train(tmp_path / "other")
    with pytest.raises(InterruptedError):
        train(tmp_path / "backups", Interruption(68))
    resumed = train(tmp_path / "backups")
    assert_same_bits(resumed[0], expected[0])
    assert resumed[1:] == expected[1:]


def test_arrays_are_resumed_by_drawing_them_again(tmp_path):
    def train(directory, *callbacks):
        rate = control(interval_samples=96, global_batch_size=32, min_improvement=0.05)
        x, labels = samples()
        model = untrained()
        backup = BackupAndRestore(directory, save_freq=2)
        model.fit(x, labels, 32, 2, callbacks=[backup, rate, *callbacks], verbose=0)
        return state_of(model), rate.history

    expected = train(tmp_path / "other")
    with pytest.raises(InterruptedError):
        train(tmp_path / "backups", Interruption(17))
    resumed = train(tmp_path / "backups")
    assert_same_bits(resumed[0], expected[0])
    assert resumed[1] == expected[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"factor": 1.0}, "factor must be between 0 and 1.*factor=1.0"),
        ({"factor": 0}, "factor=0"),
        ({"min_improvement": -0.1}, "min_improvement=-0.1"),
        ({"min_learning_rate": np.nan}, "min_learning_rate=nan"),
        ({"patience": 0}, "patience=0"),
        ({"interval_samples": 0}, "interval_samples=0"),
        ({"global_batch_size": 0}, "global_batch_size=0"),
        ({"monitor": "recall"}, "monitor='recall'"),
        ({"mode": "best"}, "mode='best'"),
    ],
)
def test_arguments_are_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        control(**arguments)


class Endless(keras.utils.PyDataset):
    num_batches = None


def test_held_out_data_and_criterion_are_needed():
    with pytest.raises(ValueError, match="validation_data=None"):
        AutoLearningRate(None, 96)
    for data, what in (
        (tf.data.Dataset.from_tensors(np.ones([4, 8])).repeat(), "a _RepeatDataset that does not"),
        (iter([(np.ones([4, 8]), np.ones(4))]), "a list_iterator that can be read only once"),
        (Endless(), "a Endless that does not end"),
    ):
        with pytest.raises(ValueError, match=f"same validation_data .*Received: {what}"):
            AutoLearningRate(data, 96)
    with pytest.raises(ValueError, match=r"monitor='auc', and logs with \['accuracy', 'loss'\]"):
        fit(untrained(), batches(), [control(monitor="auc")])
