"""Replay of data up to the position of a backup."""

import contextlib
import json

from tf_onebit._framework_internals.keras_models import build_from, set_first_epoch
from tf_onebit._training import fit
from tf_onebit.callbacks import training_state
from tf_onebit.callbacks.fit_determinism import why_not_repeatable


class Replay:
    """Replay of a `fit`'s data up to the position at which a backup was made.

    Args:
        model: Keras model whose `fit` is running.
        workers: `Workers`.

    Attributes:
        random_states: dictionary from an epoch to `training_state.random_state()` at its beginning.
    """

    def __init__(self, model, workers):
        self._model, self._workers = model, workers
        self._place = None
        self.random_states = {}
        fit.end_replay(model)  # an interrupted run may have left one

    def begin_epoch(self, epoch):
        """Begins an epoch. Returns how many of its batches are drawn without training on them."""
        self.random_states[epoch] = training_state.random_state()
        return self._place[1] if self._place and self._place[0] == epoch else 0

    def begin(self, epoch, batch, steps, state):
        """Draws the data up to a position, from which Keras then goes on.

        Args:
            epoch, batch: next epoch and batch to train on, counted from 0.
            steps: number of batches of an epoch, or None.
            state: state of this process: dictionary of NumPy arrays.
        """
        call = fit.calling_fit(self._model)
        epoch_iterator = call.epoch_iterator
        set_first_epoch(self._model, epoch)
        self.random_states = {
            int(earlier): random_state
            for earlier, random_state in json.loads(bytes(state["random_at_epoch_begin"])).items()
        }
        random_state = str(state["random"])
        reason = why_not_repeatable(epoch_iterator)
        if not self._workers.all_true(reason is None, "begin of training"):
            training_state.set_random_state(self._model, random_state)
            if batch > 0 and batch == steps:
                set_first_epoch(self._model, epoch + 1)
            elif batch > 0:
                print(
                    f"Epoch {epoch + 1} begins again, with the weights after {batch} batches. Its "
                    "data may come in another order now: "
                    f"{reason or 'the data of another worker may'}."
                )
            return
        for earlier in range(call.first_epoch, epoch):
            self._set_random_state_at_begin_of(earlier)
            with epoch_iterator.catch_stop_iteration():
                for _, _, iterator in epoch_iterator:
                    self._draw(iterator)
        executions = batch // self._model.steps_per_execution
        if executions == 0:
            training_state.set_random_state(self._model, random_state)
            return
        self._set_random_state_at_begin_of(epoch)
        self._place = epoch, batch
        logs = None

        def draw(iterator):
            nonlocal executions, logs
            data = self._draw(iterator)
            executions -= 1
            if logs is None:
                logs = self._logs(data, state)
            if executions == 0:
                # The state is assigned again: other callbacks may have changed it meanwhile.
                training_state.assign_variables(self._model, state)
                training_state.set_random_state(self._model, random_state)
                fit.end_replay(self._model)
            return dict(logs)

        fit.begin_replay(self._model, draw)

    def go_on(self, state):
        """Restores what Keras resets at the beginning of an epoch, to resume in its middle."""
        call = fit.calling_fit(self._model)
        logs = self._logs(call.batch_spec, state)
        training_state.set_random_state(self._model, str(state["random"]))
        call.set_logs(logs)  # Keras uses them if the epoch has no steps left

    def _set_random_state_at_begin_of(self, epoch):
        """Sets the random state of an epoch's beginning: its data's order may depend on it."""
        if epoch in self.random_states:
            training_state.set_random_state(self._model, self.random_states[epoch])

    def _logs(self, data, state):
        """Returns the logs that Keras had when the backup was made."""
        before = training_state.random_state()
        # If only a model's own `train_step` can build its metrics, both calls may fail with any
        # error. Then there are no logs: the metrics' values so far are lost, but not the weights.
        with contextlib.suppress(Exception):
            if not self._workers.in_strategy:  # in a strategy Keras has built it
                build_from(self._model, data)
        training_state.assign_variables(self._model, state)
        training_state.set_random_state(self._model, before)
        with contextlib.suppress(Exception):
            return self._model.get_metrics_result()
        return {}

    def _draw(self, iterator):
        """Draws the batches of one execution. The last execution may have fewer."""
        batch = next(iterator)
        for _ in range(self._model.steps_per_execution - 1):
            batch = next(iterator, batch)
        return batch
