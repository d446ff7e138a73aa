"""Which call of a function is being traced."""

import collections
import weakref

import tensorflow as tf


def traced_function():
    """The graph of the `tf.function` that is being traced."""
    graph = tf.compat.v1.get_default_graph()
    while getattr(getattr(graph, "outer_graph", None), "building_function", False):
        graph = graph.outer_graph  # a branch or a loop body is part of its function
    return graph


class CallNumbers:
    """Numbers the calls in each function: alike in every trace of it, and on all workers."""

    def __init__(self):
        self._counts = weakref.WeakKeyDictionary()

    def next(self, kind=None):
        """The number of this call, among those of its kind in the function being traced."""
        counts = self._counts.setdefault(traced_function(), collections.Counter())
        counts[kind] += 1
        return counts[kind] - 1
