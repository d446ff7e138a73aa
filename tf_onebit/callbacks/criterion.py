"""What training is judged by: a loss or metric in Keras' logs."""

import math

import numpy as np


def require_criterion(logs, monitor):
    """Raises ValueError unless logs have a criterion. Does not wait for its value."""
    if monitor not in logs:
        raise ValueError(
            f"monitor must be in the logs of the model. Received: monitor={monitor!r}, and logs "
            f"with {sorted(logs)}. Compile the model with this metric, or name another."
        )


def criterion_in(logs, monitor):
    """The criterion that logs have: float.

    NaN where the loss is not finite: a model that has diverged may have a finite accuracy, that of
    taking all samples for one class.

    Args:
        logs: dictionary, of a step of training or an evaluation.
        monitor: name in it.

    Raises:
        ValueError: if it is not there.
    """
    require_criterion(logs, monitor)
    is_finite = math.isfinite(float(logs.get("loss", 0.0)))
    return float(logs[monitor]) if is_finite else math.nan


def criterion_of_steps(logs, sizes, before, after, monitor):
    """The criterion of several steps of training: float, as `criterion_in`.

    The result of the model's metric, if it has one that follows training. A `train_step` of the
    user's may return what no metric follows: then it is the mean over the samples.

    Args:
        logs: list of the dictionaries that the steps returned.
        sizes: list of ints, number of samples of each step.
        before, after: dictionaries of the results of the model's metrics, when they were reset and
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
