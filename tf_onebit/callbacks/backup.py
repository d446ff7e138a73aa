"""BackupAndRestore: interrupted training goes on as if it had not been interrupted."""

import contextlib
import json
import warnings

import keras

from tf_onebit.callbacks import fit, training_state
from tf_onebit.callbacks.backup_files import BackupFiles
from tf_onebit.callbacks.repeatable import why_not_repeatable
from tf_onebit.callbacks.workers import Workers
from tf_onebit.data import ResizableBatches
from tf_onebit.exchanges.base import part_of


class BackupAndRestore(keras.callbacks.Callback):
    """Saves all that training goes on from, and goes on from it after an interruption.

    A run that is killed at any moment and started again ends with the weights that it would have
    had, bit for bit: model, optimizers, the residuals of every worker's exchange, the position in
    the data and the random generators of Python, NumPy and Keras' layers are saved together.

    All workers name the same directory. It is written to completely or not at all; the previous
    backup stays until the next but one, and is used if the last is damaged.

    `tf_onebit.ResizableBatches` are saved with their position, and a resumed run goes on from
    there. To find its place in other data, it draws all batches up to there again, without
    training on them. So the order of the data must be a function of seed and epoch: arrays,
    `keras.utils.PyDataset`, or `tf.data`, with seeds (`keras.utils.set_random_seed`). With data
    that come in another order each time (generators, shuffling without a seed) it says so, and
    begins the epoch anew, from the weights in its midst. What is drawn at random while a batch is
    read, to augment it, is the same only as a function of seed, epoch and the batch's number.

    Resumed with another number of workers, what had not been sent yet is divided among them anew.

    When asynchronous workers lose one of them while they train, each saves what it has learned, up
    to its last step, as `replica-<rank>.weights.h5` in the directory, for `model.load_weights`; the
    job, started again, goes on from the last backup. It ends as well as it would have, but not with
    the same bits: it never does.

    Not saved are `tf.random` operations in the step, and what other callbacks remember, unless
    they have the methods `backup_state()`, which returns a dictionary of NumPy arrays, and
    `restore_state(state)`, as `AutoMinibatchSize` and `AutoLearningRate` do. Others see the batches
    that are drawn again; put them after this one if they change the model.

    Args:
        directory: where backups are kept.
        save_freq: "epoch", or a number of batches between two backups.
        delete_checkpoint: whether backups are removed when training has ended.

    Raises:
        ValueError: if `save_freq` is neither; in `fit`, if there are backups, but none that can
            be used, if workers name different directories, or if Horovod connects several and
            their optimizer is not distributed by `tf_onebit.horovod.DistributedOptimizer`.

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
        self._files = BackupFiles(directory)
        self.directory = self._files.directory
        self.save_freq = save_freq
        self.delete_checkpoint = delete_checkpoint

    def on_train_begin(self, logs=None):
        self._workers = Workers(self.model, "BackupAndRestore saves")
        for exchange in training_state.gradient_exchanges_of(self.model):
            exchange.rescue_with(self._save_replica)
        frame = fit.frame_of_fit(self.model)
        # Of this `fit`: (name, callback) of those with a state of their own.
        self._with_state = [
            (f"callback/{i}/{type(callback).__name__}", callback)
            for i, callback in enumerate(
                c for c in frame.f_locals["callbacks"].callbacks if hasattr(c, "backup_state")
            )
        ]
        data = frame.f_locals["x"]
        self._data = data if isinstance(data, ResizableBatches) else None
        self._state_in_epoch = None  # to go on from in the midst of an epoch
        self._number = 0
        self._random_states = {}  # at the beginning of each epoch
        fit.end_replay(self.model)  # of a run that was interrupted
        manifest, states = self._latest()
        if manifest is None:
            return
        self._number = manifest["number"]
        mine = self._mine(states)
        if manifest["workers"] != self._workers.world_size:
            print(
                f"Resuming a run of {manifest['workers']} workers with "
                f"{self._workers.world_size}: what had not been sent yet is divided among them "
                "anew."
            )
            parts = 1 if len(states) == self._workers.count else self._workers.count
            mine = mine | training_state.accumulated_anew(self.model, states, parts)
        training_state.assign_variables(self.model, mine)
        training_state.load_exchanges(self.model, states)
        position = part_of(mine, "data") if self._data is not None else None
        if position:
            self._data.load_state(position)
        for prefix, callback in self._with_state:
            state = part_of(mine, prefix)
            if state:  # else it was not there then
                callback.restore_state(state)
        if position:
            self.model._initial_epoch = manifest["epoch"]
            self._state_in_epoch = mine
            return
        batch = manifest["batch"]
        if self._steps and manifest["steps"]:  # with other workers an epoch may have others
            batch = batch * self._steps // manifest["steps"]
        self._replay(manifest["epoch"], batch, mine)

    @property
    def _steps(self):
        """The number of batches of an epoch, or None."""
        return (self.params or {}).get("steps")

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch, self._batch = epoch, 0  # the next to train on
        self._saved_batch = 0  # of this epoch: the next after the last backup
        self.model._initial_epoch = None  # Keras has read it
        if self._state_in_epoch is not None:
            self._go_on(self._state_in_epoch)
            self._state_in_epoch = None
        self._random_states[epoch] = training_state.random_state()

    def on_train_batch_end(self, batch, logs=None):
        self._batch = batch + 1
        if self.save_freq != "epoch" and self._batch - self._saved_batch >= self.save_freq:
            self._save()
            self._saved_batch = self._batch

    def on_epoch_end(self, epoch, logs=None):
        fit.end_replay(self.model)
        training_state.end_epoch(self.model)
        self._epoch, self._batch = epoch + 1, 0
        if self.save_freq == "epoch":
            self._save()

    def on_train_end(self, logs=None):
        self.model._initial_epoch = None  # where there was no epoch left
        self._workers.wait_for_all()
        for exchange in training_state.gradient_exchanges_of(self.model):
            exchange.rescue_with(None)
        if self.delete_checkpoint and self._workers.rank == 0:
            self._files.remove_all()

    def _go_on(self, state):
        """Brings back what Keras has reset at the beginning of the epoch, in its midst."""
        frame = fit.frame_of_fit(self.model)
        spec = frame.f_locals["epoch_iterator"]._distributed_dataset.element_spec
        logs = self._logs(spec, state)
        training_state.set_random_state(self.model, str(state["random"]))
        # Which Keras takes for those of the last step, if all of the epoch have been made.
        frame.f_locals["logs"].update(logs)

    def _replay(self, epoch, batch, state):
        """Draws the data up to a position, which Keras then goes on from."""
        frame = fit.frame_of_fit(self.model)
        epoch_iterator = frame.f_locals["epoch_iterator"]
        self.model._initial_epoch = epoch
        self._random_states = {
            int(earlier): random_state
            for earlier, random_state in json.loads(bytes(state["random_at_epoch_begin"])).items()
        }
        random_state = str(state["random"])
        reason = why_not_repeatable(epoch_iterator)
        if not self._workers.all_true(reason is None):
            training_state.set_random_state(self.model, random_state)
            if batch > 0 and batch == self._steps:
                self.model._initial_epoch = epoch + 1
            elif batch > 0:
                print(
                    f"Epoch {epoch + 1} begins anew, from the weights after {batch} batches: its "
                    "data may come in another order now: "
                    f"{reason or 'those of another worker may'}."
                )
            return
        for earlier in range(frame.f_locals["initial_epoch"], epoch):
            self._set_random_state_at_begin_of(earlier)
            with epoch_iterator.catch_stop_iteration():
                for _, _, iterator in epoch_iterator:
                    self._draw(iterator)
        executions = batch // self.model.steps_per_execution
        if executions == 0:
            training_state.set_random_state(self.model, random_state)
            return
        self._set_random_state_at_begin_of(epoch)
        logs = None

        def draw(iterator):
            nonlocal executions, logs
            data = self._draw(iterator)
            executions -= 1
            self._saved_batch = batch
            if logs is None:
                logs = self._logs(data, state)
            if executions == 0:
                # Once more: other callbacks may have changed something.
                training_state.assign_variables(self.model, state)
                training_state.set_random_state(self.model, random_state)
                fit.end_replay(self.model)
            return dict(logs)

        fit.begin_replay(self.model, draw)

    def _set_random_state_at_begin_of(self, epoch):
        """As the order of its data may depend on it."""
        if epoch in self._random_states:
            training_state.set_random_state(self.model, self._random_states[epoch])

    def _logs(self, data, state):
        """What Keras logged when the backup was made."""
        before = training_state.random_state()
        # Both may fail, in any way, for metrics that only a model's own `train_step` can build.
        # Then there is nothing to log: their values so far are lost, the weights are not.
        with contextlib.suppress(Exception):
            if not self._workers.in_strategy:  # else Keras has done it
                self.model._symbolic_build(data_batch=data)
        training_state.assign_variables(self.model, state)
        training_state.set_random_state(self.model, before)
        with contextlib.suppress(Exception):
            return self.model.get_metrics_result()
        return {}

    def _draw(self, iterator):
        """Draws the batches of one execution, of which the last may have fewer."""
        batch = next(iterator)
        for _ in range(self.model.steps_per_execution - 1):
            batch = next(iterator, batch)
        return batch

    def _save(self):
        self._number += 1
        occasion = f"the backup after {self._batch} batches of epoch {self._epoch + 1}"
        state = {
            "random": training_state.random_state(),
            "random_at_epoch_begin": json.dumps(self._random_states).encode(),
            **training_state.collect(self.model, occasion),
            **self._states_of_others(),
        }
        self._files.write(self._number, self._workers.rank, state)
        self._workers.wait_for_all()
        is_first = self._workers.rank == 0
        complete = not is_first or self._files.has_all(self._number, self._workers.count)
        if not self._workers.all_true(complete):
            raise ValueError(
                "All workers must name one directory that they share. Received: "
                f"directory={str(self.directory)!r}, in which the first of "
                f"{self._workers.count} does not find what the others have written. Name one on a "
                "file system that all have."
            )
        if is_first:
            fields = {
                "processes": self._workers.count,
                "workers": self._workers.world_size,
                "epoch": self._epoch,
                "batch": self._batch,
                "steps": self._steps,
            }
            self._files.complete(self._number, fields)

    def _states_of_others(self):
        """Of callbacks and data: dictionary of NumPy arrays."""
        states = {prefix: callback.backup_state() for prefix, callback in self._with_state}
        if self._data is not None:
            states["data"] = self._data.state()
        return {
            f"{prefix}/{name}": array
            for prefix, state in states.items()
            for name, array in state.items()
        }

    def _save_replica(self):
        """Saves the model as this worker has it, and returns where."""
        return self._files.write_replica(self._workers.rank, self.model.save_weights)

    def _latest(self):
        """Manifest and processes' states of the newest backup that all workers can read."""
        problems = []
        for number in filter(None, self._workers.of_first(self._files.newest())):
            # Variables are made by all workers together, or by none.
            found, problem = self._on_all(self._read, number)
            if not problem:
                mine = self._mine(found[1])
                self._build(mine)
                _, problem = self._on_all(training_state.require_same_variables, self.model, mine)
            if not problem:
                return found
            problems.append(f"{self._files.path(number)}: {problem}")
            warnings.warn(f"A backup cannot be used. {problems[-1]}.", stacklevel=2)
        if problems:
            raise ValueError(
                f"No backup in {self.directory} can be used: {'; '.join(problems)}. Is it of "
                "another model? Name another directory, or remove this one to start anew."
            )
        return None, None

    def _on_all(self, function, *arguments):
        """What a function returns, and what went wrong on this worker or another, or nothing."""
        try:
            result, problem = function(*arguments), ""
        except Exception as error:  # there is no end to what may be wrong with a file
            result, problem = None, str(error)
        if self._workers.all_true(not problem):
            return result, ""
        return None, problem or "another worker cannot use it"

    def _read(self, number):
        manifest = self._files.read_manifest(number)
        processes = manifest["processes"]
        place = self._workers.place_among(processes)
        # Of others only what must be divided anew: together they may be larger than the memory.
        wanted = [place] if processes == self._workers.count else range(processes)
        states = [{} for _ in range(processes)]
        for rank in wanted:
            states[rank] = self._files.read_process(number, rank)
        return manifest, states

    def _build(self, state):
        """Gives model and optimizers the variables that Keras gives them in the first step."""
        fit.build_model(self.model, "is resumed")
        training_state.build_optimizers(self.model, state)

    def _mine(self, states):
        return states[self._workers.place_among(len(states))]
