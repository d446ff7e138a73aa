"""BackupAndRestore: backups from which interrupted training resumes with the same bits."""

import json
import os
import secrets
import warnings
from typing import Literal

import keras
import numpy as np

from tf_onebit._bmuf.callback import BlockMomentum
from tf_onebit._framework_internals.keras_models import set_first_epoch
from tf_onebit._training import fit
from tf_onebit._training.model_optimizers import gradient_exchanges_of, is_built
from tf_onebit._training.passes import follow_fit
from tf_onebit.callbacks import training_state
from tf_onebit.callbacks.backup_files import BackupFiles
from tf_onebit.callbacks.model_description import (
    describe,
    describe_optimizers,
    require_same_model,
    require_same_optimizers,
    resumed_settings,
)
from tf_onebit.callbacks.replay import Replay
from tf_onebit.callbacks.termination import Termination
from tf_onebit.callbacks.workers import Workers, by_rank, may_differ_in_steps, require_together
from tf_onebit.data import ResizableBatches
from tf_onebit.exchanges.state import part_of

_BEGIN = "begin of training"  # an occasion at which workers meet


class BackupAndRestore(keras.callbacks.Callback):
    """Callback that saves the whole state of training, and restores it after an interruption.

    A run may be killed at any moment. Started again, it ends with the same weights as without the
    interruption, bit for bit. A backup holds the model, optimizers, the residuals of every
    worker's exchange and the position in the data. It also holds the states of the random
    generators of Python, NumPy and Keras' layers.

    All workers name the same directory, and only one job may use it at a time. A backup is written
    completely or not at all. The two newest backups are kept: if the last is damaged, the callback
    warns and uses the one before. If a backup cannot be written, for example on a full disk, all
    workers warn, train on, and try again when the next is due.

    The resumed program must have the same model, and optimizers of the same classes. Settings that
    Keras keeps in a variable come from the backup: a learning rate that is a number. All others
    come from the program: schedules, momentum, `clipnorm`, `weight_decay`. Differences are
    printed.

    `tf_onebit.ResizableBatches` are saved with their position, and a resumed run goes on from
    there. In other data it draws all batches up to the position again, without training on them.
    So the order of the data must be a function of seed and epoch. Arrays,
    `keras.utils.PyDataset` and `tf.data` with seeds (`keras.utils.set_random_seed`) satisfy this.
    Generators and shuffling without a seed do not. With such data the callback prints so, and
    starts the epoch again from the weights in its middle. Random augmentation repeats only if it
    is a function of seed, epoch and the number of the batch.

    If the number of workers has changed, unsent gradients are divided among the new workers. Groups
    of a split model must keep their number of members, and may change their own number.

    If asynchronous workers lose one of them during training, each saves its model after its last
    step. The file is `replica-<rank>.weights.h5` in the directory, for `model.load_weights`. The
    job, started again, resumes from the last backup. Its result is as good, but not the same
    bits: asynchronous training never repeats them.

    Backups do not cover `tf.random` operations in the step. They cover the state of another
    callback only if it has two methods: `backup_state()`, which returns a dictionary of NumPy
    arrays, and `restore_state(state)`. `AutoMinibatchSize` and `AutoLearningRate` have them. Other
    callbacks see the batches that are drawn again. Put those that change the model after this one.

    If an exchange has local moments, each worker goes on with its own moments. Other numbers of
    workers, or of processes, begin with the mean of all. So the next mean update with momentum
    is the same. With Adam it is not. A run goes on with the `moments` with which it began.

    Args:
        directory: where backups are kept.
        save_freq: "epoch", or a number of batches between two backups.
        delete_checkpoint: whether backups are removed when training has ended.
        save_before_exit: whether SIGTERM to any worker makes all of them save after the current
            step, and exit with status 143. An earlier signal handler is called then. For this
            workers meet after every batch, which takes 1 or 2 ms.

    Raises:
        ValueError: if `save_freq` is neither. Later, if workers meet at different backups. And on
            all workers when `fit` begins, in these cases:

            - There are backups, but none can be used.
            - The directory belongs to another job, is not the same for all, or cannot be written.
            - Workers have other numbers of batches or arguments.
            - Horovod connects several workers, and their optimizer is not distributed by
              `tf_onebit.horovod.DistributedOptimizer`.
            - `BlockMomentum` comes later in the list of callbacks.
            - `save_before_exit` is set, and workers train apart.

    Example:
        >>> callback = BackupAndRestore("/tmp/backup", save_freq=100)
        >>> callback.save_freq
        100
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        save_freq: int | Literal["epoch"] = "epoch",
        delete_checkpoint: bool = True,
        save_before_exit: bool = False,
    ) -> None:
        super().__init__()
        if save_freq != "epoch" and (not isinstance(save_freq, int) or save_freq < 1):
            raise ValueError(
                'save_freq must be "epoch" or a positive number of batches. '
                f"Received: save_freq={save_freq!r}."
            )
        self._files = BackupFiles(directory)
        self.directory = self._files.directory
        self.save_freq = save_freq
        self.delete_checkpoint = delete_checkpoint
        self.save_before_exit = save_before_exit

    def _require_blocks_before(self, callbacks):
        """Raises ValueError if blocks end after a backup of the same step."""
        later = callbacks[callbacks.index(self) :]
        if any(isinstance(callback, BlockMomentum) for callback in later):
            raise ValueError(
                "A backup contains the block that has ended with a step, so BlockMomentum must "
                f"come first. Received: callbacks={[type(one).__name__ for one in callbacks]}. Put "
                "BlockMomentum before BackupAndRestore in the list."
            )

    def on_train_begin(self, logs=None):
        self._workers = Workers(self.model, "BackupAndRestore saves")
        call = fit.calling_fit(self.model)
        self._require_blocks_before(call.callbacks)
        follow_fit(call)
        names = ("save_freq", "delete_checkpoint", "save_before_exit")
        settings = {name: getattr(self, name) for name in names}
        self._workers.require_alike("BackupAndRestore", settings)
        self._begin_directory()
        self._require_same_steps()
        self._termination = None
        if self.save_before_exit:
            require_together(self.model, "BackupAndRestore(save_before_exit=True)")
            self._termination = Termination(call)
        for exchange in gradient_exchanges_of(self.model):
            exchange.rescue_with(self._save_replica)
        # Pairs (name, callback) of this `fit`'s callbacks that have a state.
        self._with_state = [
            (f"callback/{i}/{type(callback).__name__}", callback)
            for i, callback in enumerate(c for c in call.callbacks if hasattr(c, "backup_state"))
        ]
        self._data = call.data if isinstance(call.data, ResizableBatches) else None
        self._state_in_epoch = None  # to resume from in the middle of an epoch
        self._number = 0
        self._replay = Replay(self.model, self._workers)
        # Describes the model as the program has made it: training may change it.
        self._description = describe(self.model) if is_built(self.model) else None
        manifest, states = self._latest()
        if manifest is None:
            return
        self._number = manifest["number"]
        self._tell_settings(manifest)
        mine = self._mine(states)
        if len(states) != self._workers.count or manifest["workers"] != self._workers.world_size:
            mine = mine | training_state.averaged_moments(self.model, states)
        if manifest["workers"] != self._workers.world_size:
            print(
                f"Resuming a run of {manifest['workers']} workers with {self._workers.world_size} "
                "workers: the gradients that had not been sent yet are divided among them."
            )
            groups = self._workers.count // self._workers.members
            parts = 1 if len(states) == self._workers.count else groups
            mine = mine | training_state.accumulated_anew(self.model, states, parts)
        training_state.assign_variables(self.model, mine)
        training_state.load_exchanges(self.model, states)
        position = part_of(mine, "data") if self._data is not None else None
        if position:
            self._data.load_state(position)
        for prefix, callback in self._with_state:
            state = part_of(mine, prefix)
            if state:  # else the earlier run had no such callback
                callback.restore_state(state)
        if position:
            set_first_epoch(self.model, manifest["epoch"])
            self._state_in_epoch = mine
            return
        batch = manifest["batch"]
        # With another number of workers an epoch may have another number of batches.
        if self._steps and manifest["steps"]:
            batch = batch * self._steps // manifest["steps"]
        self._replay.begin(manifest["epoch"], batch, self._steps, mine)

    @property
    def _steps(self):
        """Number of batches of an epoch, or None."""
        return (self.params or {}).get("steps")

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch, self._batch = epoch, 0  # the next to train on
        set_first_epoch(self.model, None)  # Keras has read it
        if self._state_in_epoch is not None:
            self._replay.go_on(self._state_in_epoch)
            self._state_in_epoch = None
        # The batch of this epoch that follows the last backup.
        self._saved_batch = self._replay.begin_epoch(epoch)

    def on_train_batch_end(self, batch, logs=None):
        self._batch = batch + 1
        ends = self._must_end()
        is_due = self.save_freq != "epoch" and self._batch - self._saved_batch >= self.save_freq
        if is_due or (ends and not fit.is_replaying(self.model)):
            self._save()
            self._saved_batch = self._batch
        if ends:
            self._termination.exit()

    def on_epoch_end(self, epoch, logs=None):
        fit.end_replay(self.model)
        training_state.end_epoch(self.model)
        self._epoch, self._batch = epoch + 1, 0
        ends = self._must_end()
        if ends or self.save_freq == "epoch":
            self._save()
        if ends:
            self._termination.exit()

    def on_train_end(self, logs=None):
        set_first_epoch(self.model, None)  # where there was no epoch left
        self._workers.wait_for_all("end of training")
        for exchange in gradient_exchanges_of(self.model):
            exchange.rescue_with(None)
        if self._termination is not None:
            self._termination.release()
        if self._workers.rank == 0:
            self._files.end(removes=self.delete_checkpoint)

    def _begin_directory(self):
        """Takes the directory for this job; raises ValueError unless all workers can use it."""
        is_first = self._workers.rank == 0
        _, problem = _attempt(self._files.require_writable)
        self._require(problem, "cannot write there")
        job = self._workers.of_first(_new_job(), _BEGIN)
        name = np.array(job, np.int32).tobytes().hex()
        _, problem = _attempt(self._files.begin, name, is_first)
        self._require(problem, "cannot use it")
        if not self._workers.all_true(self._files.is_of_this_job(), _BEGIN):
            raise ValueError(
                "All workers must use the same directory. Received: "
                f"directory={str(self.directory)!r}, in which some of the {self._workers.count} "
                "workers do not find the files of the first. Name a directory on a file system "
                "that all workers share."
            )

    def _require(self, problem, what):
        """Raises ValueError on all workers if one of them has a problem with the directory."""
        if problem := self._workers.first_problem(problem, _BEGIN):
            raise ValueError(
                "Backups need a directory that all workers can write to and that no other job "
                f"uses. Received: directory={str(self.directory)!r}, and a worker that {what}: "
                f"{problem}."
            )

    def _require_same_steps(self):
        """Raises ValueError on all workers if they know that they have other numbers of batches.

        The check runs before the first step. Later it would deadlock: workers with fewer batches
        would wait here, while the others wait for them in a step.
        """
        if self._workers.in_strategy or may_differ_in_steps(self.model):
            return
        (steps,) = self._workers.gather([self._steps or 0], _BEGIN).T.tolist()
        if len(set(steps) - {0}) > 1:
            raise ValueError(
                "Every worker must have the same number of batches. Received: "
                f"{by_rank(f'{n} batches' for n in steps)}. Give all of them equally many samples, "
                "or pass steps_per_epoch to fit."
            )

    def _must_end(self):
        """Tells whether some worker has been asked to end. All get the same answer."""
        if self._termination is None:
            return False
        occasion = f"after {self._batch} batches of epoch {self._epoch + 1}"
        return self._workers.any_true(self._termination.is_requested, occasion)

    def _tell_settings(self, manifest):
        """Prints which settings apply where program and backup differ."""
        if self._workers.rank == 0 and "optimizers" in manifest:
            optimizers = describe_optimizers(self.model)
            for sentence in resumed_settings(manifest["optimizers"], optimizers):
                print(sentence)

    def _save(self):
        """Makes a backup. If the disk is full, training goes on without it."""
        number, rank = self._number + 1, self._workers.rank
        occasion = f"backup after {self._batch} batches of epoch {self._epoch + 1}"
        if self._description is None:
            self._description = describe(self.model)
        state = {
            "random": training_state.random_state(),
            "random_at_epoch_begin": json.dumps(self._replay.random_states).encode(),
            **training_state.collect(self.model, f"the {occasion}"),
            **self._states_of_others(),
        }
        checksum, problem = _attempt(self._files.write, number, rank, state)
        problem = self._workers.first_problem(problem, occasion)
        if not problem:
            words = np.frombuffer(checksum, np.int32).tolist()
            checksums = [row.tobytes() for row in self._workers.gather(words, occasion)]
            if rank == 0:
                fields = self._fields()
                _, problem = _attempt(self._files.complete, number, checksums, fields)
            problem = self._workers.first_problem(problem, occasion)
        if not problem:
            self._number = number
            return
        if rank == 0:
            self._files.abandon(number)
        warnings.warn(
            f"The {occasion} could not be written: {problem}. Training continues, and the next "
            f"backup is made as usual. Received: directory={str(self.directory)!r}.",
            stacklevel=2,
        )

    def _fields(self):
        """Returns the description of a backup, which the first worker writes: dictionary."""
        return {
            "workers": self._workers.world_size,
            "members": self._workers.members,
            "epoch": self._epoch,
            "batch": self._batch,
            "steps": self._steps,
            "model": self._description,
            "optimizers": describe_optimizers(self.model),
        }

    def _states_of_others(self):
        """Returns the states of callbacks and data: dictionary of NumPy arrays."""
        states = {prefix: callback.backup_state() for prefix, callback in self._with_state}
        if self._data is not None:
            states["data"] = self._data.state()
        return {
            f"{prefix}/{name}": array
            for prefix, state in states.items()
            for name, array in state.items()
        }

    def _save_replica(self):
        """Saves this worker's model, and returns the path."""
        return self._files.write_replica(self._workers.rank, self.model.save_weights)

    def _latest(self):
        """Finds the newest backup that all workers can use.

        Returns:
            Its manifest and the processes' states, or (None, None) if there is no backup.

        Raises:
            ValueError: on all workers, if there are backups, but none can be used.
        """
        problems = []
        for number in filter(None, self._workers.of_first(self._files.newest(), _BEGIN)):
            # All workers must build together, so they agree first that all have read it.
            found, problem = self._on_all(self._read, number)
            if not problem:
                self._build(self._mine(found[1]))
                _, problem = self._on_all(self._require_same, *found)
            if not problem:
                return found
            problems.append(f"{self._files.path(number)}: {problem}")
            warnings.warn(f"A backup cannot be used. {problems[-1]}.", stacklevel=2)
        if problems:
            raise ValueError(
                f"No backup in {self.directory} can be used: {'; '.join(problems)}. Is it of "
                "another model? Name another directory. To start from the beginning, remove this "
                "one."
            )
        return None, None

    def _on_all(self, function, *arguments):
        """Returns a function's result, and the error of the first worker that has one, or ""."""
        try:
            result, problem = function(*arguments), ""
        except Exception as error:  # a damaged file may cause any error
            result, problem = None, str(error) or type(error).__name__
        return result, self._workers.first_problem(problem, _BEGIN)

    def _require_same(self, manifest, states):
        """Raises ValueError unless a backup has the same model and optimizers."""
        if self._description is None:
            self._description = describe(self.model)
        if "model" in manifest:  # not in all versions
            require_same_model(manifest["model"], self._description)
            require_same_optimizers(manifest["optimizers"], describe_optimizers(self.model))
        training_state.require_same_variables(self.model, self._mine(states))

    def _read(self, number):
        manifest = self._files.read_manifest(number)
        processes = manifest["processes"]
        members = manifest.get("members", 1)
        if members != self._workers.members:
            raise ValueError(
                f"it is of groups of {members}, and the model is split among "
                f"{self._workers.members}. To change the number, save the model and load its file"
            )
        place = self._workers.place_among(processes)
        # Reads several states only if they must be redistributed: together they may exceed the
        # memory. Members have other variables than this process.
        wanted = [place] if processes == self._workers.count else range(place, processes, members)
        states = [{} for _ in range(processes)]
        for rank in wanted:
            states[rank] = self._files.read_process(manifest, rank)
        return manifest, states

    def _build(self, state):
        """Creates the variables of model and optimizers that Keras creates in the first step."""
        fit.build_model(self.model, "is resumed")
        training_state.build_optimizers(self.model, state)

    def _mine(self, states):
        return states[self._workers.place_among(len(states))]


def _new_job():
    """Returns a random id for a job: list of two int32."""
    return np.frombuffer(secrets.token_bytes(8), np.int32).tolist()


def _attempt(function, *arguments):
    """Returns a function's result, and the message of an OSError, or ""."""
    try:
        return function(*arguments), ""
    except OSError as error:
        return None, str(error)
