"""A `tf.function` as what a strategy runs."""

import weakref

import tensorflow as tf

from tf_onebit.framework_internals.tf_functions import (
    is_compiled_by_xla,
    is_function,
    with_same_settings,
)


def is_lifted(function, devices):
    """Tells whether a function is a `tf.function` in whose graph all replicas must come together.

    What XLA compiles for GPUs is not: it stays a graph per replica, as under TensorFlow's own.
    """
    if not is_function(function):
        return False
    on_gpus = all(tf.DeviceSpec.from_string(device).device_type == "GPU" for device in devices)
    return not (on_gpus and is_compiled_by_xla(function))


class LiftedFunctions:
    """Each `tf.function` around all replicas, instead of within each, where none could meet.

    One is traced as often as it would be by itself, and is freed with it.

    Args:
        run: calls a Python function on all replicas, as `tf.distribute.Strategy.run`.
    """

    def __init__(self, run):
        self._run = run
        self._lifted = weakref.WeakKeyDictionary()

    @tf.autograph.experimental.do_not_convert
    def of(self, function):
        """The lifted form of a `tf.function`."""
        if function not in self._lifted:
            self._lifted[function] = self._lift(function, function.python_function)
        return self._lifted[function]

    def _lift(self, function, on_replica):
        # It keeps what it calls, but not the function, which is its key.
        def on_replicas(*args, **kwargs):
            return self._run(on_replica, args, kwargs)

        return with_same_settings(function, on_replicas)
