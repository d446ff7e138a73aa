"""`tf.function`s and the graphs that they are traced into."""

import collections
import weakref

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

_DRAWING = ("IteratorGetNext", "IteratorGetNextSync", "OptionalGetValue")


def is_function(function):
    """Tells whether something is what `tf.function` returns.

    Relies on `Function` (tensorflow/python/eager/polymorphic_function/polymorphic_function.py:453).
    """
    return isinstance(function, Function)


def is_compiled_by_xla(function):
    """Tells whether a `tf.function` was made with `jit_compile=True`.

    Relies on `Function._jit_compile` (polymorphic_function.py:522).
    """
    return bool(function._jit_compile)


def with_same_settings(function, python_function):
    """Returns a `tf.function` of another Python function, with the settings of a first.

    Relies on `Function._clone` (polymorphic_function.py:714).
    """
    return function._clone(python_function)


def traced_function():
    """Returns the graph of the `tf.function` that is being traced.

    Relies on `FuncGraph.outer_graph` and `building_function`
    (tensorflow/python/framework/func_graph.py:448, 226), as does `drawn_tensors`.
    """
    graph = tf.compat.v1.get_default_graph()
    while getattr(getattr(graph, "outer_graph", None), "building_function", False):
        graph = graph.outer_graph  # a branch or a loop body is part of its function
    return graph


def drawn_tensors():
    """Returns tensors without which the function being traced has no data: list, maybe empty.

    Its arguments, or what iterators in it give. Where data end a step is begun like any other; what
    is not to be done then must wait for these.

    Relies on `FuncGraph.internal_captures` (tensorflow/python/framework/func_graph.py:804) too, and
    on the names of the ops that draw.
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
    """Numbers of the calls in each function: alike in every trace of it, and on all workers."""

    def __init__(self):
        self._counts = weakref.WeakKeyDictionary()

    def next(self, kind=None):
        """Returns the number of this call among those of its kind in the function being traced."""
        counts = self._counts.setdefault(traced_function(), collections.Counter())
        counts[kind] += 1
        return counts[kind] - 1
