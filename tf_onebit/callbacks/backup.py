"""BackupAndRestore: interrupted training goes on as if it had not been interrupted."""

import inspect
import json
import os
import pathlib
import shutil
import warnings
import zipfile

import keras
import numpy as np
import tensorflow as tf

from tf_onebit._version import __version__
from tf_onebit.callbacks import training_state
from tf_onebit.collectives.requests import AllGather, ask

_FORMAT = "tf_onebit backup 1"
_MANIFEST = "manifest.json"
_KEPT = 2  # the second in case that the first turns out to be damaged


class BackupAndRestore(keras.callbacks.Callback):
    """Saves all that training goes on from, and goes on from it after an interruption.

    A run that is killed at any moment and started again ends with the weights that it would have
    had, bit for bit: model, optimizers, the residuals of every worker's exchange, the position in
    the data and the random generators of Python, NumPy and Keras' layers are saved together.

    All workers name the same directory. It is written to completely or not at all; the previous
    backup stays until the next but one, and is used if the last is damaged.

    To find its place in the data, a resumed run draws all batches up to there again, without
    training on them. So the order of the data must be a function of seed and epoch: arrays,
    `keras.utils.PyDataset`, or `tf.data` with seeds. Data that come in another order each time
    (generators, `tf.data` that shuffles without a seed) are resumed at another place.

    Resumed with another number of workers, what had not been sent yet is divided among them anew.

    Args:
        directory: where backups are kept.
        save_freq: "epoch", or a number of batches between two backups.
        delete_checkpoint: whether backups are removed when training has ended.

    Raises:
        ValueError: if `save_freq` is neither, or if there are backups, but none that can be used.

    Example:
        >>> callback = BackupAndRestore("/tmp/backup", save_freq=100)
        >>> callback.save_freq
        100
    """

    def __init__(self, directory, save_freq="epoch", delete_checkpoint=True):
        super().__init__()
        if save_freq != "epoch" and (not isinstance(save_freq, int) or save_freq < 1):
            raise ValueError(
                'save_freq must be "epoch" or a positive number of batches. '
                f"Received: save_freq={save_freq!r}."
            )
        self.directory = pathlib.Path(directory)
        self.save_freq = save_freq
        self.delete_checkpoint = delete_checkpoint

    def on_train_begin(self, logs=None):
        self._workers = _Workers(self.model, self.directory)
        self._number = 0
        manifest, states = self._latest()
        if manifest is None:
            return
        if manifest["processes"] != self._workers.count:
            print(
                f"Resuming a run of {manifest['processes']} processes with {self._workers.count}: "
                "what had not been sent yet is divided among them anew."
            )
        self._number = manifest["number"]
        mine = states[self._workers.rank if len(states) == self._workers.count else 0]
        training_state.assign_variables(self.model, mine)
        training_state.load_exchanges(self.model, states)
        self._replay(manifest["epoch"], manifest["batch"], mine)

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch, self._batch = epoch, 0  # the next to train on
        self._saved_batch = 0  # of this epoch: the next after the last backup
        self._random_at_epoch_begin = training_state.random_state()

    def on_train_batch_end(self, batch, logs=None):
        self._batch = batch + 1
        if self.save_freq != "epoch" and self._batch - self._saved_batch >= self.save_freq:
            self._save()
            self._saved_batch = self._batch

    def on_epoch_end(self, epoch, logs=None):
        self._epoch, self._batch = epoch + 1, 0
        if self.save_freq == "epoch":
            self._save()

    def on_train_end(self, logs=None):
        self.model._initial_epoch = None  # of this run only
        self._workers.wait_for_all()
        if self.delete_checkpoint and self._workers.rank == 0:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _replay(self, epoch, batch, state):
        """Draws the data up to a position, which Keras then goes on from."""
        fit = _frame_of_fit(self.model)
        epoch_iterator = fit.f_locals["epoch_iterator"]
        for _ in range(fit.f_locals["initial_epoch"], epoch):
            with epoch_iterator.catch_stop_iteration():
                for _, _, iterator in epoch_iterator:
                    self._draw(iterator)
        self.model._initial_epoch = epoch
        executions = batch // self.model.steps_per_execution
        if executions == 0:
            training_state.set_random_state(state["random"])
            return
        # Keras shuffles an epoch when it begins.
        training_state.set_random_state(state["random_at_epoch_begin"])
        train = self.model.train_function

        def draw(iterator):
            nonlocal executions
            data = self._draw(iterator)
            executions -= 1
            self._saved_batch = batch
            if executions == 0:
                self.model.train_function = train
                # Metrics have been reset for this epoch, if there are any yet, and random
                # numbers drawn.
                self.model._symbolic_build(data_batch=data)
                training_state.assign_variables(self.model, state)
                training_state.set_random_state(state["random"])
            return {}

        self.model.train_function = draw

    def _draw(self, iterator):
        """Draws the batches of one execution, of which the last may have fewer."""
        batch = next(iterator)
        for _ in range(self.model.steps_per_execution - 1):
            batch = next(iterator, batch)
        return batch

    def _save(self):
        self._number += 1
        target = self.directory / f"backup-{self._number:08d}"
        unfinished = self.directory / f"unfinished-{self._number:08d}"
        unfinished.mkdir(parents=True, exist_ok=True)
        with (unfinished / f"process_{self._workers.rank}.npz").open("wb") as file:
            np.savez(
                file,
                random=training_state.random_state(),
                random_at_epoch_begin=self._random_at_epoch_begin,
                **training_state.collect(self.model),
            )
            _flush(file)
        self._workers.wait_for_all()
        if self._workers.rank != 0:
            return
        manifest = {
            "format": _FORMAT,
            "version": __version__,
            "number": self._number,
            "processes": self._workers.count,
            "epoch": self._epoch,
            "batch": self._batch,
        }
        with (unfinished / _MANIFEST).open("w") as file:
            json.dump(manifest, file)
            _flush(file)
        if target.exists():  # damaged: it was not resumed from
            shutil.rmtree(target)
        unfinished.rename(target)
        for old in self._backups()[_KEPT:]:
            shutil.rmtree(old)

    def _backups(self):
        """Directories of complete backups, newest first."""
        return sorted(self.directory.glob("backup-*"), reverse=True)

    def _latest(self):
        """Manifest and processes' states of the newest backup that all workers can read."""
        _build_optimizers(self.model)
        problems = []
        for path in self._workers.agreed(self._backups()):
            try:
                found, problem = _read(path, self.model), ""
            except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
                found, problem = None, f"{path}: {error}"
            if self._workers.all_true(found is not None):
                return found
            problems.append(problem or f"{path}: another worker cannot read it")
            warnings.warn(f"A backup cannot be used. {problems[-1]}.", stacklevel=2)
        if problems:
            raise ValueError(
                f"No backup in {self.directory} can be used: {'; '.join(problems)}. Is it of "
                "another model? Name another directory, or remove this one to start anew."
            )
        return None, None


def _build_optimizers(model):
    for optimizer in training_state.optimizers_of(model):
        if not optimizer.built:
            optimizer.build(model.trainable_variables)


def _read(path, model):
    manifest = json.loads((path / _MANIFEST).read_text())
    if manifest.get("format") != _FORMAT:
        raise ValueError(f"it is no backup of this version: {manifest.get('format')!r}")
    states = []
    for rank in range(manifest["processes"]):
        with np.load(path / f"process_{rank}.npz") as file:
            states.append(dict(file))
    training_state.require_same_variables(model, states[0])
    return manifest, states


def _flush(file):
    file.flush()
    os.fsync(file.fileno())


def _frame_of_fit(model):
    """The frame of the `model.fit` that calls: Keras hands its data to no one else."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_locals.get("self") is model and "epoch_iterator" in frame.f_locals:
            return frame
        frame = frame.f_back
    raise RuntimeError("BackupAndRestore works in model.fit only.")


class _Workers:
    """The processes of a job, as a model's optimizers know them."""

    def __init__(self, model, directory):
        self._directory = directory
        exchanges = training_state.gradient_exchanges_of(model)
        engine = exchanges[0].engine if exchanges else None
        # Where all workers are in this process, it is alone.
        alone = engine is None or len(engine.ranks) == engine.world_size
        self._engine = None if alone else engine
        self.rank = self._engine.ranks[0] if self._engine else 0
        self.count = self._engine.world_size if self._engine else 1

    def all_true(self, value):
        return bool(np.all(self._gather([int(value)])))

    def wait_for_all(self):
        self._gather([0])

    def agreed(self, paths):
        """Those of a list of paths that rank 0 has."""
        numbers = [int(path.name.split("-")[1]) for path in paths]
        first, second = (numbers + [0] * _KEPT)[:_KEPT]
        wanted = self._gather([first, second])[0]
        return [self._directory / f"backup-{number:08d}" for number in wanted if number]

    def _gather(self, numbers):
        """The numbers of all processes: `[count, len(numbers)]`."""
        if self._engine is None:
            return np.array([numbers])
        mine = AllGather(tf.constant([numbers], tf.int32), "tf_onebit/backup")
        (gathered,) = self._engine.run([ask(mine)])
        return gathered.numpy()
