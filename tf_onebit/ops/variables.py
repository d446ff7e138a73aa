"""Lists of variables that an op updates together."""

from collections.abc import Sequence

import tensorflow as tf


def can_update(variables: Sequence[tf.Variable]) -> bool:
    """Tells whether one op can update variables: float32, on one device, and none of them twice."""
    return (
        all(variable.dtype == tf.float32 for variable in variables)
        and len({variable.device for variable in variables}) <= 1
        and len({id(variable) for variable in variables}) == len(variables)
    )
