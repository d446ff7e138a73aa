"""Underway: the synchronization of a fragment that goes on while workers train."""

import concurrent.futures
import threading

import numpy as np
import tensorflow as tf

from tf_onebit._bmuf.meeting import Meeting
from tf_onebit._bmuf.replica import mean_of_arrays, state_type


class Underway:
    """Synchronization of a fragment that goes on while workers train.

    Args:
        index: index of the fragment.
        steps: list, by worker of this process, of its optimizers' steps when it began.
        changes: what `changes` of the `Fragment` has returned then.
        results: `concurrent.futures.Future` of a `Meeting`, and of what the exchange of the changes
            returns: means and averages, by worker of this process. It is None if the workers
            cannot exchange.
    """

    def __init__(self, index, steps, changes, results):
        self.index, self.steps, self.changes = index, steps, changes
        self._results = results

    def result(self):
        """Waits for the results. Returns or raises what came of them."""
        return self._results.result()

    def states(self):
        """Returns the states of workers that can exchange: list of dictionaries of arrays."""
        meeting, results = self.result()
        return [
            {
                "index": np.array(self.index),
                "steps": np.array(steps),
                "meeting": meeting.rows,
                **_arrays("change", changes),
                **_arrays("mean", means),
                **_arrays("average", averages),
            }
            for steps, (changes, _), (means, averages) in zip(
                self.steps, self.changes, results, strict=True
            )
        ]

    @classmethod
    def of_states(cls, states, states_of_all, weights_of, averaged, members):
        """Returns the synchronization that an earlier run had under way.

        Args:
            states: list of dictionaries, by worker of this process.
            states_of_all: list of lists of dictionaries, of which each worker takes the mean.
            weights_of: function from the index of a fragment to its weights.
            averaged: list of the variables that are averaged as they are.
            members: see `Meeting`.
        """
        index = int(states[0]["index"])
        weights = weights_of(index)
        changes = [(_tensors(others, "change", weights), []) for others in states_of_all]
        results = [
            (_tensors([own], "mean", weights), _tensors([own], "average", averaged))
            for own in states
        ]
        done = concurrent.futures.Future()
        done.set_result((Meeting(states[0]["meeting"], members), results))
        return cls(index, [own["steps"].tolist() for own in states], changes, done)


def in_background(function):
    """Calls a function in a thread of its own. Returns the `concurrent.futures.Future`."""

    def run():
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
