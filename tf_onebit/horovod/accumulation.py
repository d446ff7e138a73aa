"""Gradient accumulation over several steps."""

import numbers


def accumulated_steps(optimizer, passes):
    """Returns Keras' `gradient_accumulation_steps` for Horovod's `backward_passes_per_step`.

    Args:
        optimizer: `keras.optimizers.Optimizer`.
        passes: `backward_passes_per_step`.

    Returns:
        Number of steps, or None for an update in every step.

    Raises:
        ValueError: for anything but a positive whole number, for an optimizer that accumulates
            another number of steps, and for one that is built already.
    """
    if not isinstance(passes, numbers.Integral) or passes < 1:
        raise ValueError(
            "backward_passes_per_step must be a positive number of steps. Received: "
            f"backward_passes_per_step={passes!r}. Use 1 to update in every step."
        )
    steps = optimizer.gradient_accumulation_steps
    if passes in (1, steps):
        return steps
    if steps is not None:
        raise ValueError(
            "backward_passes_per_step and gradient_accumulation_steps are two ways to say the "
            f"same thing. Received: backward_passes_per_step={passes} for an optimizer with "
            f"gradient_accumulation_steps={steps}. Leave one of them out."
        )
    if optimizer.built:
        raise ValueError(
            "backward_passes_per_step needs an optimizer without variables. Received: "
            f"{optimizer.name!r}, which already has variables, with "
            f"backward_passes_per_step={passes}. Make a new one with "
            f"gradient_accumulation_steps={passes}."
        )
    return int(passes)
