"""Keras' own callbacks that write files, on the workers of a strategy."""

import pathlib
import tempfile

import keras
import numpy as np
import pytest

from tests.support.in_scope import in_scope, samples, workers
from tests.support.ranks import assert_same_bits_on_all_ranks, gather, rank
from tests.support.training import BATCH_SIZE
from tf_onebit import Delayed, OneBit


class Interrupt(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise KeyboardInterrupt


def callbacks_in(folder):
    keras_own = keras.callbacks
    return [
        keras_own.ModelCheckpoint(folder / "best.weights.h5", "val_loss", save_weights_only=True),
        keras_own.ModelCheckpoint(folder / "{epoch}-{batch}.keras", save_freq=4),
        keras_own.CSVLogger(folder / "log.csv"),
        keras_own.CSVLogger(folder / f"log-{rank()}.csv"),
        keras_own.TensorBoard(folder / "board"),
        keras_own.BackupAndRestore(folder / "backup", save_freq=2, delete_checkpoint=False),
    ]


def places(callbacks):
    names = ["filepath", "filepath", "filename", "filename", "log_dir", "backup_dir"]
    return [str(getattr(c, name)) for c, name in zip(callbacks, names, strict=True)]


def folders_of_others():
    return list(pathlib.Path(tempfile.gettempdir()).glob("tf_onebit_*"))


@workers
def test_the_first_worker_writes_what_all_name(world_size, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "written").mkdir()
    folder = pathlib.Path(gather(str(tmp_path))[0], "written")
    callbacks = callbacks_in(folder)
    before, classes = places(callbacks), list(map(type, callbacks))
    x, labels = samples(world_size)
    fit = {"batch_size": BATCH_SIZE * world_size, "shuffle": False, "verbose": 0}
    fit |= {"validation_data": (x[:32], labels[:32]), "callbacks": callbacks}
    model = in_scope(Delayed(OneBit()))
    # An interrupted fit leaves callbacks that write elsewhere. The next fit has them again.
    with pytest.raises(KeyboardInterrupt):
        model.fit(x, labels, **fit | {"callbacks": [*callbacks, Interrupt()]})
    again = in_scope(Delayed(OneBit()))  # continues after the first epoch
    again.fit(x, labels, epochs=3, **fit)

    assert places(callbacks) == before
    assert list(map(type, callbacks)) == classes
    assert_same_bits_on_all_ranks([np.array(v) for v in again.trainable_variables])
    assert gather(list(map(str, folders_of_others()))) == [[]] * world_size
    names = {path.name for path in folder.iterdir() if path.suffix != ".keras"}
    logs = {"log.csv", *(f"log-{k}.csv" for k in range(world_size))}
    assert names == {"best.weights.h5", "board", "backup", *logs}
    assert len((folder / "log.csv").read_text().splitlines()) == 4  # a header and three epochs
    # All workers can read at once what the first has written.
    again.load_weights(folder / "best.weights.h5")
    models = sorted(folder.glob("*.keras"))
    assert len(models) > 2
    loaded = keras.models.load_model(models[-1])
    assert_same_bits_on_all_ranks([np.array(v) for v in loaded.trainable_variables])
