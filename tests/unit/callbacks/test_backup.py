"""Backups of a run in one process: what is refused, what is kept, and what is written."""

import contextlib
import json
import os
import resource
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.bits import assert_same_bits
from tests.support.nightly import nightly
from tests.support.training import INPUTS, compiled, make_data, make_model
from tf_onebit.callbacks import BackupAndRestore, training_state


def newest(directory):
    return max(directory.glob("backup-*"))


def fit(directory, units=32, epochs=1, delete_checkpoint=False, optimizer=None, **arguments):
    model = compiled(make_model(units=units), optimizer or keras.optimizers.SGD(0.1))
    x, labels = np.zeros([32, INPUTS], np.float32), np.zeros([32], np.int32)
    callback = BackupAndRestore(directory, delete_checkpoint=delete_checkpoint, **arguments)
    return model.fit(x, labels, 8, epochs, verbose=0, callbacks=[callback])


def test_backup_of_another_model_is_refused(tmp_path):
    fit(tmp_path)
    with pytest.raises(ValueError, match="No backup in .* can be used: .* the model's .*Is it of"):
        with pytest.warns(UserWarning, match="A backup cannot be used"):
            fit(tmp_path, units=16)


def test_backup_of_another_optimizer_is_refused(tmp_path):
    fit(tmp_path, optimizer=keras.optimizers.SGD(0.1, momentum=0.9))
    with pytest.raises(ValueError, match="its optimizer is SGD, and the model's is RMSprop"):
        with pytest.warns(UserWarning, match="A backup cannot be used"):
            fit(tmp_path, optimizer=keras.optimizers.RMSprop(0.1))


def test_settings_that_are_variables_are_the_backups_and_others_the_programs(tmp_path, capsys):
    fit(tmp_path, optimizer=keras.optimizers.SGD(0.1, momentum=0.9))
    optimizer = keras.optimizers.SGD(0.01, momentum=0.8)
    fit(tmp_path, epochs=2, optimizer=optimizer)
    assert (float(optimizer.learning_rate), optimizer.momentum) == (np.float32(0.1), 0.8)
    printed = capsys.readouterr().out
    assert "continues with the backup's learning_rate = 0.1, not with the program's 0.01" in printed
    assert "continues with the program's momentum = 0.8, not with the backup's 0.9" in printed
    fit(tmp_path, epochs=3, optimizer=keras.optimizers.SGD(0.1, momentum=0.8))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "content", ['{"manifest": {}, "checksum": ""}', *nightly('{"epoch": 3}', "[]")]
)
def test_damaged_manifest_is_passed_over_for_the_backup_before(content, tmp_path):
    fit(tmp_path, epochs=3)
    (newest(tmp_path) / "manifest.json").write_text(content)
    with pytest.warns(UserWarning, match="A backup cannot be used. .*backup-00000003"):
        assert len(fit(tmp_path, epochs=3).history["loss"]) == 1


def test_full_disk_is_a_warning_and_the_next_backup_is_tried(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(epoch, logs=None):
        # The second backup has room for some of its states only.
        resource.setrlimit(resource.RLIMIT_FSIZE, (9000 if epoch == 1 else limits[0], limits[1]))

    model = compiled(make_model(), keras.optimizers.SGD(0.1))
    data = np.zeros([32, INPUTS], np.float32), np.zeros([32], np.int32)
    full = keras.callbacks.LambdaCallback(on_epoch_begin=limit)
    names = []
    listing = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: names.append(sorted(os.listdir(tmp_path)))
    )
    callbacks = [full, BackupAndRestore(tmp_path, delete_checkpoint=False), listing]
    try:
        with pytest.warns(UserWarning, match="backup after 0 batches of epoch 3 could not.*large"):
            model.fit(*data, 8, epochs=3, verbose=0, callbacks=callbacks)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    backups = [f"backup-0000000{number}" for number in (1, 2)]
    assert names == [[backups[0], "lock"], [backups[0], "lock"], [*backups, "lock"]]
    assert fit(tmp_path, epochs=3).history == {}


def test_directory_that_cannot_be_written_is_found_out_at_the_beginning(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="a worker that cannot write there: .*Not a directory"):
        fit(tmp_path / "file" / "backups")


class Termination(keras.callbacks.Callback):
    """A callback that asks its process to end, before a step that is counted from 0."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_train_batch_begin(self, batch, logs=None):
        if self.model.optimizer.iterations == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


def weights_after(directory, *callbacks, **arguments):
    keras.utils.set_random_seed(1)
    model = compiled(make_model(), keras.optimizers.Adam(0.1))
    x, labels = make_data(4, 1)
    backup = BackupAndRestore(directory, save_before_exit=True, **arguments)
    x, labels = x.reshape(-1, INPUTS), labels.reshape(-1)
    model.fit(x, labels, 16, epochs=3, verbose=0, callbacks=[backup, *callbacks])
    return model.get_weights()


@pytest.fixture
def handler():
    """A user's handler, which notes what the program had saved when it was called."""
    calls = []
    previous = signal.signal(signal.SIGTERM, lambda *arguments: calls.append(arguments))
    yield calls
    signal.signal(signal.SIGTERM, previous)


def test_a_process_that_is_asked_to_end_saves_and_ends_after_the_step(handler, tmp_path):
    expected = weights_after(tmp_path / "expected")
    for step, place in ((5, [1, 2]), (7, [1, 4])):  # the second is the last of an epoch
        with pytest.raises(SystemExit) as error:
            weights_after(tmp_path, Termination(step))
        assert error.value.code == 143
        manifest = json.loads((newest(tmp_path) / "manifest.json").read_text())["manifest"]
        assert [manifest["epoch"], manifest["batch"]] == place
    assert len(handler) == 2
    assert_same_bits(weights_after(tmp_path), expected)


def test_after_a_fit_that_ended_in_an_error_signals_do_what_they_did(handler, tmp_path):
    with pytest.raises(InterruptedError):
        weights_after(tmp_path, Interruption(3))
    with pytest.raises(InterruptedError):
        weights_after(tmp_path, Interruption(3))
    os.kill(os.getpid(), signal.SIGTERM)
    assert len(handler) == 1
    weights_after(tmp_path)
    os.kill(os.getpid(), signal.SIGTERM)
    assert len(handler) == 2


def test_foreign_file_is_refused(tmp_path):
    fit(tmp_path)
    (newest(tmp_path) / "manifest.json").write_text(json.dumps({"epoch": 3}))
    with pytest.raises(ValueError, match="it is no backup of this version: None"):
        with pytest.warns(UserWarning):
            fit(tmp_path)


def generator():
    while True:
        yield np.zeros([8, INPUTS], np.float32), np.zeros([8], np.int32)


def without_seed(rows):
    tf.random.set_seed(None)
    return (
        tf.data.Dataset.range(rows)
        .shuffle(rows)
        .map(lambda _: (tf.zeros([INPUTS]), tf.zeros([], tf.int32)))
        .batch(8)
    )


@pytest.mark.parametrize(
    "make_data, reason",
    [
        (generator, "they come through a GeneratorDataAdapter"),
        (lambda: without_seed(32), "ShuffleDataset has no seed. Call keras.utils.set_random_seed"),
    ],
)
def test_an_epoch_of_data_in_any_order_begins_anew(make_data, reason, tmp_path, capsys):
    batches = []
    count = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: batches.append(batch)
    )
    for callback, expectation in (
        (Interruption(7), pytest.raises(InterruptedError)),  # the third of the second epoch
        (count, contextlib.nullcontext()),
    ):
        model = compiled(make_model(), keras.optimizers.SGD(0.1))
        backup = BackupAndRestore(tmp_path, save_freq=2)
        with expectation:
            callbacks = [backup, callback]
            model.fit(make_data(), epochs=3, steps_per_epoch=4, verbose=0, callbacks=callbacks)
    assert batches == [0, 1, 2, 3] * 2
    assert model.optimizer.iterations == 6 + 8
    printed = capsys.readouterr().out
    assert "Epoch 2 begins again, with the weights after 2 batches" in printed
    assert reason in printed


def test_two_backups_are_kept_and_a_finished_run_has_nothing_left_to_do(tmp_path):
    fit(tmp_path, epochs=4)
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        "backup-00000003",
        "backup-00000004",
    ]
    assert fit(tmp_path, epochs=4).history == {}
    assert len(fit(tmp_path, epochs=6).history["loss"]) == 2


class Interruption(keras.callbacks.Callback):
    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_train_batch_end(self, batch, logs=None):
        if self.model.optimizer.iterations == self.step:
            raise InterruptedError


def test_epochs_that_are_resumed_at_their_end_keep_their_logs(tmp_path):
    """Callbacks that read logs find them in every batch that is drawn again."""
    x = np.random.default_rng(0).standard_normal([32, INPUTS]).astype(np.float32)
    data = {"x": x, "y": np.arange(32) % 10, "batch_size": 8, "epochs": 3, "verbose": 0}
    reading = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: logs["loss"])

    def history(callbacks):
        model = compiled(make_model(), keras.optimizers.SGD(0.1), metrics=["accuracy"])
        return model.fit(**data, callbacks=callbacks).history

    expected = history([])
    for step in (6, 9):  # after the backups at 4 and 8, at the ends of epochs
        with pytest.raises(InterruptedError):
            history([BackupAndRestore(tmp_path, save_freq=4), Interruption(step)])
    resumed = history([BackupAndRestore(tmp_path, save_freq=4), reading])
    assert resumed == {name: values[1:] for name, values in expected.items()}


class TwoPlayers(keras.Model):
    """A model with a train step of its own, and an optimizer for each part."""

    def __init__(self):
        super().__init__()
        keras.utils.set_random_seed(0)
        self.players = [keras.layers.Dense(4), keras.layers.Dense(4)]
        for player in self.players:
            player.build([None, INPUTS])
        self.rivals = [keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.02)]

    def train_step(self, data):
        for player, optimizer in zip(self.players, self.rivals, strict=True):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(player(data[0]) ** 2)
            weights = player.trainable_variables
            optimizer.apply(tape.gradient(loss, weights), weights)
        return {"last": loss}


def test_model_that_only_its_own_step_trains(tmp_path):
    x = np.random.default_rng(0).standard_normal([32, INPUTS]).astype(np.float32)

    def weights(callbacks):
        model = TwoPlayers()
        model.compile()
        model.fit(x, x, batch_size=8, epochs=2, verbose=0, callbacks=callbacks)
        return model.get_weights()

    class InterruptionOfRivals(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if self.model.rivals[1].iterations == 7:
                raise InterruptedError

    expected = weights([])
    with pytest.raises(InterruptedError):
        weights([BackupAndRestore(tmp_path, save_freq=3), InterruptionOfRivals()])
    assert_same_bits(weights([BackupAndRestore(tmp_path, save_freq=3)]), expected)


def test_model_whose_resuming_was_interrupted_trains_again(tmp_path):
    model = compiled(make_model(), keras.optimizers.SGD(0.1))
    data = {"x": np.zeros([32, INPUTS], np.float32), "y": np.zeros([32]), "batch_size": 8}

    class InterruptionOfReplay(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise InterruptedError

    def interrupted(callback):
        backup = BackupAndRestore(tmp_path, save_freq=3)
        with pytest.raises(InterruptedError):
            model.fit(**data, epochs=3, verbose=0, callbacks=[backup, callback])

    interrupted(Interruption(8))  # a backup after 3 batches of the second epoch
    interrupted(InterruptionOfReplay())
    model.fit(**data, epochs=3, verbose=0, callbacks=[BackupAndRestore(tmp_path)])
    assert model.optimizer.iterations == 12


def test_accumulated_gradients_are_divided_among_other_workers():
    def accumulating(scale):
        model = compiled(make_model(), keras.optimizers.SGD(0.1, gradient_accumulation_steps=4))
        x, labels = np.ones([8, INPUTS], np.float32), np.zeros([8], np.int32)
        model.fit(scale * x, labels, 8, verbose=0)
        return model

    states = [training_state.collect(accumulating(scale), "a test") for scale in (1.0, 2.0)]
    model = accumulating(3.0)
    training_state.assign_variables(model, training_state.accumulated_anew(model, states, 3))
    accumulators = {id(v) for v in model.optimizer._accumulated_gradients}
    places = [i for i, v in enumerate(model.optimizer.variables) if id(v) in accumulators]
    assert len(places) == 3
    for i in places:
        total = sum(state[f"optimizer_0/{i}#0"] for state in states)
        assert np.any(total)
        np.testing.assert_allclose(model.optimizer.variables[i], total / 3, rtol=1e-6)


def test_files_of_others_are_left_alone(tmp_path):
    names = ("backup-2024", "backup-of-mine", "replica-1.txt", "model.keras")
    others = [tmp_path / name for name in names]
    for other in others:
        other.write_text("")
    (tmp_path / "replica-12.weights.h5").write_text("")  # of a worker that lost another
    fit(tmp_path, epochs=4, delete_checkpoint=True)
    assert sorted(tmp_path.iterdir()) == sorted(others)


@pytest.mark.parametrize("save_freq", [0, -1, "batch", 1.5])
def test_arguments_are_checked(save_freq, tmp_path):
    with pytest.raises(ValueError, match=f"save_freq must be.*{save_freq!r}"):
        BackupAndRestore(tmp_path, save_freq)
