"""The criterion that training is judged by: a loss or metric in Keras' logs."""

import math

import numpy as np


def require_criterion(logs, monitor):
    """Raises ValueError unless logs contain a criterion. Does not wait for its value."""
    if monitor not in logs:
        raise ValueError(
            f"monitor must be in the logs of the model. Received: monitor={monitor!r}, and logs "
            f"with {sorted(logs)}. Compile the model with this metric, or name another."
        )


def criterion_in(logs, monitor):
    """Returns the criterion in logs: float.

    It is NaN if the loss is not finite. A diverged model may still have a finite accuracy, because
    it assigns all samples to one class.

    Args:
        logs: dictionary, of a training step or an evaluation.
        monitor: name in `logs`.

    Raises:
        ValueError: if `logs` do not contain it.
    """
    require_criterion(logs, monitor)
    is_finite = math.isfinite(float(logs.get("loss", 0.0)))
    return float(logs[monitor]) if is_finite else math.nan


def criterion_of_steps(logs, sizes, before, after, monitor):
    """Returns the criterion of several training steps: float, as `criterion_in` does.

    If a metric of the model tracks the criterion, its result is returned. The user's own
    `train_step` may return values that no metric tracks. Then the mean over the samples is
    returned.

    Args:
        logs: list of the dictionaries that the steps returned.
        sizes: list of ints, number of samples of each step.
        before, after: dictionaries of the results of the model's metrics, after their reset and
            after the steps.
        monitor: name in the logs.
    """
    follow = {
        name: after[name]
        for name in {"loss", monitor} & set(after)
        if name not in before or float(after[name]) != float(before[name])
    }
    if monitor in follow:
        return criterion_in(logs[-1] | follow, monitor)
    return float(np.average([criterion_in(one, monitor) for one in logs], weights=sizes))
