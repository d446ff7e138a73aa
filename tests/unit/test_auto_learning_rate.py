"""AutoLearningRate in `fit`, in one process."""

import keras
import numpy as np
import pytest

from tests.unit.tuned import (
    At,
    assert_same_bits,
    batches,
    make_model,
    make_small_model,
    samples,
    state_of,
)
from tf_onebit.callbacks import AutoLearningRate, AutoMinibatchSize, BackupAndRestore


def control(criteria=None, interval_samples=96, **arguments):
    """Told the criteria of its evaluations, or measuring them."""
    x, labels = samples()
    callback = AutoLearningRate((x[:64], labels[:64]), interval_samples, **arguments)
    if criteria is not None:
        given = iter(criteria)
        callback._criterion = lambda: next(given)
    return callback


def fit(model, data, callbacks, epochs=1, **arguments):
    return model.fit(data, epochs=epochs, callbacks=callbacks, verbose=0, **arguments).history


def test_learning_rate_follows_the_criterion():
    callback = control([1.0, 0.9, 0.899, 0.8], min_improvement=0.01)
    fit(make_small_model(), batches(), [callback])
    assert callback.history["position"] == [96, 192, 288, 384]
    assert callback.history["criterion"] == [1.0, 0.9, 0.899, 0.8]
    np.testing.assert_allclose(callback.history["learning_rate"], [0.1, 0.1, 0.05, 0.05])
    assert callback.history["reverted"] == [False] * 4


def test_learning_rate_of_the_steps_is_the_reduced_one():
    """And schedules go on below the factor."""
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


@pytest.mark.parametrize("worse", [2.0, np.nan])
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
        kept = "best" if id(variable) in learned else "before"  # metrics, generators go on
        np.testing.assert_array_equal(states["after"][i], states[kept][i])
        changed += not np.array_equal(states["before"][i], states["best"][i])
    assert changed > trained / 2
    np.testing.assert_allclose(callback.history["learning_rate"], [0.1, 0.05, 0.05, 0.05])
    assert callback.history["reverted"] == [False, True, False, False]


def test_first_evaluation_that_is_not_finite_leads_back_to_the_beginning():
    model, data, weights = make_small_model(), batches(), []
    first = model.get_weights()
    seen = At(data, 96, lambda model: weights.append(model.get_weights()))
    fit(model, data, [control([np.nan, 1.0, 0.9, 0.8]), seen])
    assert_same_bits(weights[0], first)


class Drawing(keras.utils.PyDataset):
    """Held-out data that are augmented."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        x, labels = samples()
        return x[:32] + np.random.normal(size=[32, 1]).astype(np.float32), labels[:32]


def test_evaluation_leaves_logs_and_random_numbers_alone():
    expected = fit(plain := make_model(), batches(), [])
    expected_number = np.random.rand()
    callback = AutoLearningRate(Drawing(), interval_samples=96, min_improvement=0.0)
    callback._control.decide = lambda criterion: type(
        "Nothing", (), dict.fromkeys(("keep", "revert", "reduce", "stop"), False)
    )
    assert fit(model := make_model(), batches(), [callback]) == expected
    assert_same_bits(state_of(model), state_of(plain))
    assert np.random.rand() == expected_number
    assert len(set(callback.history["criterion"])) == 4


def test_criterion_is_that_of_evaluate():
    callback, data, expected = control(monitor="val_accuracy"), batches(), []

    def evaluate(model):
        x, labels = samples()
        expected.append(model.evaluate(x[:64], labels[:64], verbose=0, return_dict=True))

    fit(make_small_model(), data, [At(data, 96, evaluate), callback])
    assert callback.history["criterion"][0] == pytest.approx(expected[0]["accuracy"])


def test_learning_rate_is_not_reduced_below_the_least():
    callback = control([1.0] * 4, min_learning_rate=0.04)
    fit(make_small_model(), batches(), [callback])
    np.testing.assert_allclose(callback.history["learning_rate"], [0.1, 0.05, 0.04, 0.04])


def test_patience_ends_training_with_the_best_model():
    model, data, best = make_small_model(), batches(), []
    callback = control([0.5, 0.8, 0.9, 0.1], patience=2)
    seen = At(data, 96, lambda model: best.append(model.get_weights()))
    fit(model, data, [callback, seen], epochs=3)
    assert callback.history["position"] == [96, 192, 288]
    assert_same_bits(model.get_weights(), best[0])


def test_criterion_at_the_end_of_training_counts():
    model, data, best = make_small_model(), batches(), []
    callback = control([1.0, 0.9, 0.8, 5.0])
    seen = At(data, 288, lambda model: best.append(model.get_weights()))
    fit(model, data, [callback, seen])
    assert callback.history["position"][-1] == 384
    assert_same_bits(model.get_weights(), best[0])


def test_any_data_of_which_the_size_of_a_step_is_known():
    callback = control([1.0, 0.9, 0.8, 0.7], interval_samples=100, global_batch_size=32)
    x, labels = samples()
    make_small_model().fit(x, labels, batch_size=32, callbacks=[callback], verbose=0)
    assert callback.history["position"] == [128, 256, 384]
    with pytest.raises(ValueError, match="global_batch_size=None, and data of type ndarray"):
        make_small_model().fit(x, labels, callbacks=[control()], verbose=0)


class Interruption(keras.callbacks.Callback):
    def __init__(self, steps):
        super().__init__()
        self.steps_left = steps

    def on_train_batch_end(self, batch, logs=None):
        self.steps_left -= 1
        if self.steps_left == 0:
            raise InterruptedError


def test_both_callbacks_are_resumed_with_the_same_bits(tmp_path):
    def train(directory, *callbacks):
        data, model = batches(), make_model(keras.optimizers.SGD(0.4, momentum=0.5))
        x, labels = samples()
        rate = AutoLearningRate((x[:64], labels[:64]), 64, "accuracy", min_improvement=0.01)
        size = AutoMinibatchSize(data, 128, 96, multiple=8, error_margin=0.05)
        backup = BackupAndRestore(directory, save_freq=2)
        history = fit(model, data, [rate, backup, size, *callbacks], epochs=2)
        assert any(rate.history["reverted"])
        return state_of(model), rate.history, size.history, history["loss"][-1]

    expected = train(tmp_path / "other")
    with pytest.raises(InterruptedError):
        train(tmp_path / "backups", Interruption(17))
    resumed = train(tmp_path / "backups")
    assert_same_bits(resumed[0], expected[0])
    assert resumed[1:] == expected[1:]


def test_arrays_are_resumed_by_drawing_them_again(tmp_path):
    def train(directory, *callbacks):
        rate = control(interval_samples=96, global_batch_size=32, min_improvement=0.05)
        x, labels = samples()
        model = make_small_model()
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


def test_held_out_data_and_criterion_are_needed():
    with pytest.raises(ValueError, match="validation_data=None"):
        AutoLearningRate(None, 96)
    with pytest.raises(ValueError, match=r"monitor='auc', and \['accuracy', 'loss'\]"):
        fit(make_small_model(), batches(), [control(monitor="auc")])
