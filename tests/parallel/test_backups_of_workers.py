"""Backups that all workers of a job make together."""

import os
import pathlib
import resource
import signal
import time
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_onebit
from tests.support.nightly import nightly_rows
from tests.support.ranks import gather, rank
from tests.support.training import compiled, fit_part, make_data, make_model
from tf_onebit.callbacks import BackupAndRestore
from tf_onebit.callbacks.workers import Workers

# The step before which each worker is asked to end.
ENDS = {"one": {1: 5}, "all": {0: 6, 1: 5}, "at_end": {0: 3}}


@pytest.fixture
def directory(tmp_path):
    """Returns one directory for all workers."""
    return pathlib.Path(gather(str(tmp_path))[0]) / "backups"


def make(engine, exchange=None):
    optimizer = keras.optimizers.Adam(0.01)
    exchange = exchange or tf_onebit.OneBit(min_size=0)
    if engine == "horovod":
        import tf_onebit.horovod as hvd

        return compiled(make_model(), hvd.DistributedOptimizer(optimizer, exchange))
    with tf_onebit.distribute.MultiWorkerMirroredStrategy(exchange).scope():
        return compiled(make_model(), keras.optimizers.Adam(0.01))


def fit(model, directory, *callbacks, epochs=3, steps=4, **arguments):
    backup = BackupAndRestore(directory, **arguments)
    keras.utils.set_random_seed(2)
    callbacks = [backup, *callbacks]
    fit_part(model, steps, 2, epochs=epochs, callbacks=callbacks)
    return model.get_weights()


class Termination(keras.callbacks.Callback):
    """A callback that asks some workers to end, some sooner than others."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def on_train_batch_begin(self, batch, logs=None):
        if self.steps.get(rank()) == self.model.optimizer.iterations.numpy():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)


# Engines differ only in how workers tell each other.
@pytest.mark.workers(
    jobs=[
        ("horovod", 2, "one"),
        *nightly_rows(("horovod", 2, "all"), ("horovod", 2, "at_end"), ("tensorflow", 2, "all")),
    ],
    also=["name"],
)
def test_workers_of_which_one_is_asked_to_end_save_together(engine, name, world_size, directory):
    expected, steps = fit(make(engine), directory / "expected"), ENDS[name]
    with pytest.raises(SystemExit) as error:
        fit(make(engine), directory / name, Termination(steps), save_before_exit=True)
    assert error.value.code == 143
    # After the step in which the first worker was asked, but no other yet.
    model, seen = make(engine), []
    begin = keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: seen.append(model.optimizer.iterations.numpy())
    )
    weights = fit(model, directory / name, begin, save_before_exit=True)
    assert seen == [min(steps.values()) + 1]
    for mine, theirs in zip(weights, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.workers(2)
def test_workers_that_train_apart_cannot_save_before_they_exit(world_size, directory):
    model = make("horovod", tf_onebit.Local())
    with pytest.raises(ValueError, match=r"save_before_exit=True\) needs workers that make every"):
        fit(model, directory, save_before_exit=True)


@pytest.mark.workers(2)
def test_workers_with_other_arguments_are_told(world_size, directory):
    told = "rank 0 has save_freq of BackupAndRestore = 2, rank 1 has .* = 3"
    with pytest.raises(ValueError, match=told):
        fit(make("horovod"), directory, save_freq=2 + rank())


def batches(count):
    x, labels = make_data(count, 1)
    return tf.data.Dataset.from_tensor_slices((x[:, 0], labels[:, 0]))


@pytest.mark.workers(2)
def test_other_numbers_of_batches_are_told_before_the_first(world_size, directory):
    model = make("horovod")
    told = "same number of batches. Received: rank 0: 5 batches; rank 1: 3 batches. Give all"
    with pytest.raises(ValueError, match=told):
        model.fit(batches([5, 3][rank()]), verbose=0, callbacks=[BackupAndRestore(directory)])
    assert model.optimizer.iterations == 0


@pytest.mark.workers(2)
def test_workers_that_meet_at_different_places_are_told(world_size):
    workers = Workers(make("horovod"), "A callback asks")
    told = (
        "rank 0: backup after 3 batches; rank 1: backup after 4 batches. "
        "Every worker must have the same number of batches"
    )
    with pytest.raises(ValueError, match=told):
        workers.wait_for_all(f"backup after {3 + rank()} batches")


@pytest.mark.workers(2)
def test_directory_that_one_cannot_write_is_told_to_all(world_size, directory, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ValueError, match="a worker that cannot write there: .*Not a directory"):
        fit(make("horovod"), directory if rank() == 0 else file / "backups")


@pytest.mark.workers(2)
def test_full_disk_of_one_worker_is_a_warning_on_all(world_size, directory):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(epoch, logs=None):
        is_full = epoch == 1 and rank() == 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (9000 if is_full else limits[0], limits[1]))

    listings = []
    full = keras.callbacks.LambdaCallback(on_epoch_begin=limit)
    listing = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: listings.append(len(list(directory.glob("backup-*"))))
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(make("horovod"), directory, listing, full)
        gather(None)
    told = [str(one.message) for one in caught if "could not be written" in str(one.message)]
    assert len(told) == 1 and "backup after 0 batches of epoch 3" in told[0]
    assert listings[:2] == [1, 1]
    assert not directory.exists()


@pytest.mark.workers(2)
def test_numbers_that_all_get_are_those_that_all_give(world_size):
    workers = Workers(make("horovod"), "A test asks")
    assert workers.gather([rank(), -7], "a test").tolist() == [[0, -7], [1, -7]]
    assert workers.mean(float(rank()) + 0.25, "a test") == 0.75
    assert workers.of_first([3 + rank()], "a test") == [3]
    assert workers.any_true(rank() == 1, "a test") and not workers.all_true(rank() == 1, "a test")
    assert workers.first_problem("", "a test") == ""
    assert workers.first_problem("gone" if rank() else "", "a test") == "gone"
    with pytest.raises(ValueError, match="places: rank 0: one thing; rank 1: another. Every"):
        workers.wait_for_all("another" if rank() else "one thing")
