"""Underway: the synchronization of a fragment that goes on while workers train."""

import concurrent.futures
import threading

import numpy as np
import tensorflow as tf

from tf_onebit._bmuf.meeting import Meeting
from tf_onebit._bmuf.values import mean_of_arrays, state_type


class Underway:
    """Synchronization of a fragment that goes on while workers train.

    Args:
        index: index of the fragment.
        steps: list, by worker of this process, of its optimizers' steps that the meeting counts.
        changes: what `changes` of the `Fragment` has returned when it began.
        meeting: `concurrent.futures.Future` of a `Meeting`.
        sums: `concurrent.futures.Future` of what the exchange of the changes returns.
        batches: number of this process's batches since then.
        has_means: whether the sums have been corrected, and are means.
    """

    def __init__(self, index, steps, changes, meeting, sums, batches=0, has_means=False):
        self.index, self.steps, self.changes, self.batches = index, steps, changes, batches
        self._meeting, self._sums, self.has_means = meeting, sums, has_means

    @classmethod
    def begun(cls, index, steps, changes, meet, exchange, before):
        """Begins a synchronization.

        Args:
            index, steps, changes: see `Underway`.
            meet, exchange: functions without arguments that return a `Meeting`, and the sums.
            before: `Underway` that began before this one, or None. Its messages go first, so that
                all workers send in the same order.
        """
        meetings, sums = (before._meeting, before._sums) if before else (_done(None), _done(None))
        return cls(index, steps, changes, _after(meetings, meet), _after(sums, exchange))

    def result(self):
        """Waits for the meeting and the sums. Returns or raises what came of them."""
        sums = self._sums.result()  # its error says more
        return self._meeting.result(), sums

    def states(self):
        """Waits as `result` does. Returns the states of workers: list of dictionaries."""
        meeting, sums = self.result()
        return [
            {
                "index": np.array(self.index),
                "batches": np.array(self.batches),
                "has_means": np.array(self.has_means),
                "steps": np.array(steps),
                "meeting": meeting.rows,
                "scale": scale.numpy(),
                **_arrays("change", changes),
                **_arrays("value", values),
                **_arrays("sum", of_changes),
                **_arrays("average", averages),
            }
            for steps, (changes, values, scale), (of_changes, averages) in zip(
                self.steps, self.changes, sums, strict=True
            )
        ]

    @classmethod
    def of_states(cls, states, states_of_all, weights_of_fragments, averaged, members, as_many):
        """Returns the synchronization that an earlier run had under way.

        Args:
            states: list of dictionaries, by worker of this process.
            states_of_all: list of lists of dictionaries, of which each worker takes the mean.
            weights_of_fragments: list of lists of weights.
            averaged: list of the variables that are averaged as they are.
            members: see `Meeting`.
            as_many: see `load` of `SavedBlocks`.
        """
        index, rows = int(states[0]["index"]), states[0]["meeting"]
        has_means, total = bool(states[0]["has_means"]), 1.0
        if not as_many:  # all go on as if all had made as many steps
            mean = np.ceil(rows.mean(axis=0, keepdims=True)).astype(np.int64)
            rows = np.repeat(mean, max(members) + 1, axis=0)
            if not has_means:
                total = float(sum(other["scale"] for other in states_of_all[0])) or 1.0
                has_means = True
        weights = weights_of_fragments[index]
        sums = [
            (
                [tensor / total for tensor in _tensors([own], "sum", weights)],
                [tensor / total for tensor in _tensors([own], "average", averaged)],
            )
            for own in states
        ]
        changes = [_mean_changes(others, weights, averaged) for others in states_of_all]
        steps = [own["steps"].tolist() for own in states]
        meeting, batches = _done(Meeting(rows, members)), int(states[0]["batches"])
        return cls(index, steps, changes, meeting, _done(sums), batches, has_means)


def _mean_changes(states, weights, averaged):
    """Returns the means of workers' changes and values, and their scale: see `Fragment`."""
    scale = states[0]["scale"]
    if len(states) > 1:  # whose scales may differ
        states = [
            {name: array / own["scale"] if own["scale"] else array for name, array in own.items()}
            for own in states
        ]
        scale = 1.0
    values = _tensors(states, "value", averaged)
    return _tensors(states, "change", weights), values, tf.constant(scale, tf.float64)


def _done(result):
    future = concurrent.futures.Future()
    future.set_result(result)
    return future


def _after(earlier, function):
    """Calls a function in a thread when a `Future` is done. Returns its own `Future`."""

    def run():
        concurrent.futures.wait([earlier])
        try:
            future.set_result(function())
        except BaseException as error:  # it is raised where the result is read
            future.set_exception(error)

    future = concurrent.futures.Future()
    # An executor's thread would keep a program from ending while other workers are gone.
    threading.Thread(target=run, name="tf_onebit blocks", daemon=True).start()
    return future


def _arrays(name, tensors):
    # NumPy cannot save all types of weights.
    return {f"{name}/{i}": tf.cast(t, state_type(t)).numpy() for i, t in enumerate(tensors)}


def _tensors(states, name, variables):
    """Returns the means of the arrays that states have, with the types of variables: list."""
    return [
        tf.cast(mean_of_arrays([state[f"{name}/{i}"] for state in states]), variable.dtype)
        for i, variable in enumerate(variables)
        if f"{name}/{i}" in states[0]
    ]
