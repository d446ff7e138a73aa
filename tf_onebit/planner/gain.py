"""One rule for whether sending less pays, which plans, `Auto` and the Monitor share."""

# A smaller gain would not be worth another way of training.
LEAST_GAIN = 1.1


def pays(full_seconds: float, seconds: float) -> bool:
    """Tells whether sending less pays: whether it is at least a tenth faster.

    Args:
        full_seconds: time in full precision, of a step or of an exchange.
        seconds: the same time if less is sent.

    Example:
        >>> pays(1.2, 1.0), pays(1.05, 1.0)
        (True, False)
    """
    return full_seconds > LEAST_GAIN * seconds
