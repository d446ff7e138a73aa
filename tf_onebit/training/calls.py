"""Which call of a function is being traced."""

import collections
import weakref

import tensorflow as tf

_DRAWING = ("IteratorGetNext", "IteratorGetNextSync", "OptionalGetValue")


def traced_function():
    """The graph of the `tf.function` that is being traced."""
    graph = tf.compat.v1.get_default_graph()
    while getattr(getattr(graph, "outer_graph", None), "building_function", False):
        graph = graph.outer_graph  # a branch or a loop body is part of its function
    return graph


def drawn_tensors():
    """Tensors without which the function being traced has no data: a list, maybe empty.

    Its arguments, or what iterators in it give. Where data end a step is begun like any other; what
    is not to be done then must wait for these.
    """
    graph, tensors = tf.compat.v1.get_default_graph(), []
    while getattr(graph, "building_function", False) and not tensors:
        captured = {id(tensor) for tensor in graph.internal_captures}
        arguments = [tensor for tensor in graph.inputs if id(tensor) not in captured]
        tensors = [t for t in arguments if t.dtype not in (tf.resource, tf.variant)]
        drawing = [op for op in graph.get_operations() if op.type in _DRAWING]
        tensors += [op.outputs[0] for op in drawing]
        graph = graph.outer_graph
    return tensors


class CallNumbers:
    """Numbers the calls in each function: alike in every trace of it, and on all workers."""

    def __init__(self):
        self._counts = weakref.WeakKeyDictionary()

    def next(self, kind=None):
        """The number of this call, among those of its kind in the function being traced."""
        counts = self._counts.setdefault(traced_function(), collections.Counter())
        counts[kind] += 1
        return counts[kind] - 1
