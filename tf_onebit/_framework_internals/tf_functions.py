"""Private parts of `tf.function`s and their graphs."""

import collections
import weakref

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

_DRAWING = ("IteratorGetNext", "IteratorGetNextSync", "OptionalGetValue")


def is_function(function):
    """Tells whether an object is a `tf.function`.

    Relies on `Function` (tensorflow/python/eager/polymorphic_function/polymorphic_function.py:453).
    """
    return isinstance(function, Function)


def is_compiled_by_xla(function):
    """Tells whether a `tf.function` was made with `jit_compile=True`.

    Relies on `Function._jit_compile` (polymorphic_function.py:522).
    """
    return bool(function._jit_compile)


def with_same_settings(function, python_function):
    """Returns a `tf.function` of a Python function, with the settings of another `tf.function`.

    Relies on `Function._clone` (polymorphic_function.py:714).
    """
    return function._clone(python_function)


def traced_function():
    """Returns the graph of the `tf.function` being traced.

    Relies, like `drawn_tensors`, on `FuncGraph.outer_graph` and `building_function`
    (tensorflow/python/framework/func_graph.py:448, 226).
    """
    graph = tf.compat.v1.get_default_graph()
    while getattr(getattr(graph, "outer_graph", None), "building_function", False):
        graph = graph.outer_graph  # branches and loop bodies are graphs within the function's
    return graph


def drawn_tensors():
    """Returns the data tensors of the function being traced: list, maybe empty.

    These are its arguments, or the results of iterators in it. A step begins even if the data have
    ended. Operations that must not run in such a step wait for these tensors.

    Relies also on `FuncGraph.internal_captures` (tensorflow/python/framework/func_graph.py:804),
    and on the names of the ops that read iterators.
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
    """Counter of calls in each traced function, with equal numbers on all workers.

    Every trace of a function counts from 0.
    """

    def __init__(self):
        self._counts = weakref.WeakKeyDictionary()

    def next(self, kind=None):
        """Returns the number of this call, from 0, among its kind in the function being traced."""
        counts = self._counts.setdefault(traced_function(), collections.Counter())
        counts[kind] += 1
        return counts[kind] - 1
