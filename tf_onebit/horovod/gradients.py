"""The exchange of gradients over Horovod."""

import horovod.tensorflow as hvd

from tf_onebit.collectives.horovod import HorovodEngine
from tf_onebit.training.gradients import GradientExchange


def require_op(op):
    """Raises ValueError for an operation of Horovod's that gradients are not exchanged by."""
    if op not in (hvd.Average, hvd.Sum):
        raise ValueError(f"op must be Average or Sum of tf_onebit.horovod. Received: op={op}.")


def require_not_distributed(optimizer):
    """Raises ValueError if an optimizer exchanges gradients already."""
    if hasattr(getattr(optimizer, "inner_optimizer", optimizer), "gradient_exchange"):
        raise ValueError(
            f"The optimizer {optimizer.name!r} is distributed already. Wrap it only once: what "
            "wraps it returns the same optimizer."
        )


def horovod_exchange(template, op, settings=()):
    """A `GradientExchange` of `template` over Horovod, for one of Horovod's operations."""
    require_op(op)
    return GradientExchange(template, HorovodEngine(), op == hvd.Average, settings)
