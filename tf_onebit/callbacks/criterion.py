"""What training is judged by: a loss or metric in Keras' logs."""

import math


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
