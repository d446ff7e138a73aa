"""Checks of arguments that count samples: sizes of batches, and time constants."""

import math
import numbers


def number_of_samples(name, value):
    """Checks a number of samples, and returns it as int.

    Args:
        name: of the argument, for the error.
        value: what was given.

    Raises:
        ValueError: if it is not a positive whole number.

    Example:
        >>> number_of_samples("global_batch_size", 256.0)
        256
    """
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not 0 < value < 2**53 or value != int(value):
        raise ValueError(
            f"{name} must be a positive whole number of samples. Received: {name}={value!r}."
        )
    return int(value)


def time_constant_in_samples(value):
    """Checks a time constant, and returns it as float.

    It is a number of samples, not necessarily whole.

    Raises:
        ValueError: if it is not positive.

    Example:
        >>> time_constant_in_samples(720000)
        720000.0
    """
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:
        raise ValueError(
            "time_constant must be a positive number of samples. Received: "
            f"time_constant={value!r}. Two hours of speech, at 100 frames per second, are 720000."
        )
    return float(value)
