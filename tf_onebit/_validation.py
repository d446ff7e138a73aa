"""Checks of the numbers that users give as arguments."""

import math
import numbers


def is_number(value: object, least: float = -math.inf, below: float = math.inf) -> bool:
    """Tells whether a value is a real number within bounds, and not a boolean."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return False
    return least <= value < below  # type: ignore[operator]  # `Real` declares no `>=`


def is_whole(value: object, least: float) -> bool:
    """Tells whether a value is a whole number, at least `least`, and not a boolean."""
    return isinstance(value, numbers.Integral) and is_number(value, least)


def number_of_samples(name: str, value: float) -> int:
    """Checks a number of samples, and returns it as int.

    Args:
        name: name of the argument, for the error.
        value: given value.

    Raises:
        ValueError: if it is not a positive whole number.

    Example:
        >>> number_of_samples("global_batch_size", 256.0)
        256
    """
    if not is_number(value, 1, below=2**53) or value != int(value):
        raise ValueError(
            f"{name} must be a positive whole number of samples. Received: {name}={value!r}."
        )
    return int(value)


def time_constant_in_samples(value: float) -> float:
    """Checks a time constant, and returns it as float.

    It is a number of samples, which may have a fraction.

    Raises:
        ValueError: if it is not positive.

    Example:
        >>> time_constant_in_samples(720000)
        720000.0
    """
    if not is_number(value, 0) or value == 0:
        raise ValueError(
            "time_constant must be a positive number of samples. Received: "
            f"time_constant={value!r}. Two hours of speech, at 100 frames per second, are 720000."
        )
    return float(value)
