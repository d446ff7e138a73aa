"""`tf.function`s that a strategy runs."""

import weakref

import tensorflow as tf

from tf_onebit._framework_internals.tf_functions import (
    is_compiled_by_xla,
    is_function,
    with_same_settings,
)


def is_lifted(function, devices):
    """Tells whether a function is a `tf.function` whose graph must contain all replicas.

    A function that XLA compiles for GPUs stays a graph per replica, as under TensorFlow's own
    strategies.
    """
    if not is_function(function):
        return False
    on_gpus = all(tf.DeviceSpec.from_string(device).device_type == "GPU" for device in devices)
    return not (on_gpus and is_compiled_by_xla(function))


class LiftedFunctions:
    """Lifted forms of `tf.function`s: one graph around all replicas instead of one within each.

    Replicas could not exchange from separate graphs. A lifted function is traced as often as the
    original, and is freed with it.

    Args:
        run: function that calls a Python function on all replicas, such as
            `tf.distribute.Strategy.run`.
    """

    def __init__(self, run):
        self._run = run
        self._lifted = weakref.WeakKeyDictionary()

    @tf.autograph.experimental.do_not_convert
    def of(self, function):
        """Returns the lifted form of a `tf.function`."""
        if function not in self._lifted:
            self._lifted[function] = self._lift(function, function.python_function)
        return self._lifted[function]

    def _lift(self, function, on_replica):
        # Refers to the Python function only: a reference to `function`, its weak key, would keep
        # both alive.
        def on_replicas(*args, **kwargs):
            return self._run(on_replica, args, kwargs)

        return with_same_settings(function, on_replicas)
