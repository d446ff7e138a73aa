"""Horovod's collectives for all values that TensorFlow can convert to a tensor."""

import functools
from collections.abc import Callable
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf


def _for_values(
    function: Callable[..., tf.Tensor], second: str | None = None
) -> Callable[..., tf.Tensor]:
    """Wraps a collective of `horovod.tensorflow` to accept the arguments of `horovod.keras`.

    Collectives of `horovod.keras` accept numbers, arrays and Keras variables, as `value`.

    Args:
        function: the collective.
        second: name of its second argument, if `horovod.keras` has `name` in that position.
    """

    @functools.wraps(function)
    def collective(*args: Any, **options: Any) -> tf.Tensor:
        if "value" in options:
            args = (options.pop("value"), *args)
        if second is not None and len(args) > 1 and isinstance(args[1], str) and args[1]:
            raise ValueError(
                f"The second argument of {function.__name__} is {second} in horovod.tensorflow, "
                f"and name in horovod.keras. Received: {args[1]!r}. Pass it as name= or "
                f"{second}=."
            )
        if args:
            args = (_tensor(args[0]), *args[1:])
        elif "tensor" in options:
            options["tensor"] = _tensor(options["tensor"])
        return function(*args, **options)

    return collective


def _tensor(value: Any) -> tf.Tensor | tf.Variable | tf.IndexedSlices:
    if isinstance(value, (tf.IndexedSlices, tf.Variable)):
        return value
    return tf.convert_to_tensor(value)


allgather = _for_values(hvd.allgather)
allreduce = _for_values(hvd.allreduce, second="average")
alltoall = _for_values(hvd.alltoall)
broadcast = _for_values(hvd.broadcast)
reducescatter = _for_values(hvd.reducescatter, second="device_dense")
