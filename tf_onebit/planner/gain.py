"""When it pays to send less: one rule, for plans, `Auto` and the Monitor."""

# What is gained by less would not be worth another way of training.
LEAST_GAIN = 1.1


def pays(full_seconds, seconds):
    """Tells whether to send less pays: whether it is faster by a tenth at least.

    Args:
        full_seconds: time that the exchange takes in full precision.
        seconds: time that it takes if less is sent.

    Example:
        >>> pays(1.2, 1.0), pays(1.05, 1.0)
        (True, False)
    """
    return full_seconds > LEAST_GAIN * seconds
