"""Gradient exchange over Horovod."""

from typing import NamedTuple

import horovod.tensorflow as hvd
import tensorflow as tf

from tf_onebit._training.gradient_exchange import GradientExchange
from tf_onebit.collectives.horovod import HorovodEngine
from tf_onebit.collectives.lockstep import LockstepEngine
from tf_onebit.exchanges.gradients import times


def require_op(op):
    """Raises ValueError unless an operation of Horovod's is `Average` or `Sum`."""
    if op not in (hvd.Average, hvd.Sum):
        raise ValueError(
            f"op must be Average or Sum of tf_onebit.horovod. Received: op={_name_of(op)}. Leave "
            "op out for the mean of gradients. Use hvd.allreduce(tensor, op=op) for other "
            "tensors."
        )


def _name_of(op):
    names = ("Average", "Sum", "Adasum", "Min", "Max", "Product")
    return next((name for name in names if getattr(hvd, name) == op), repr(op))


def require_not_distributed(optimizer):
    """Raises ValueError if an optimizer exchanges gradients already."""
    if hasattr(getattr(optimizer, "inner_optimizer", optimizer), "gradient_exchange"):
        raise ValueError(
            f"The optimizer {optimizer.name!r} is distributed already. Wrap it only once: the "
            "wrapper returns the same optimizer."
        )


class Conversion(NamedTuple):
    """Conversion of gradients before and after their exchange.

    Attributes:
        sparse_as_dense: whether `tf.IndexedSlices` become dense tensors.
        predivide_factor: divisor before the exchange, and factor after it.
        factor: further factor after the exchange.
    """

    sparse_as_dense: bool = False
    predivide_factor: float = 1.0
    factor: float = 1.0

    def before(self, gradients):
        """Converts a list of gradients before their exchange."""
        if self.sparse_as_dense:
            gradients = [None if g is None else tf.convert_to_tensor(g) for g in gradients]
        return times(gradients, 1 / self.predivide_factor)

    def keeps_exchanged(self):
        """Tells whether `after` returns exchanged gradients unchanged."""
        return self.predivide_factor * self.factor == 1.0

    def after(self, gradients):
        """Converts a list of gradients after their exchange."""
        return times(gradients, self.predivide_factor * self.factor)


def requested_conversion(op, sparse_as_dense, predivide_factor, factor=1.0):
    """Returns the `Conversion` for Horovod's arguments, or raises ValueError."""
    if not predivide_factor > 0:
        raise ValueError(
            "gradient_predivide_factor must be positive. Received: gradient_predivide_factor="
            f"{predivide_factor}. Leave it out, unless sums in float16 overflow."
        )
    if predivide_factor != 1.0 and op != hvd.Average:
        raise ValueError(
            "gradient_predivide_factor needs op=Average, because it splits the division by the "
            f"number of workers. Received: gradient_predivide_factor={predivide_factor} with "
            f"op={_name_of(op)}. Leave it out."
        )
    return Conversion(bool(sparse_as_dense), float(predivide_factor), float(factor))


def require_one_device(device_dense, device_sparse):
    """Raises ValueError if sparse gradients have another device than dense ones."""
    if device_sparse and device_sparse != device_dense:
        raise ValueError(
            "Dense and sparse gradients must be exchanged on the same device. Received: "
            f"device_dense={device_dense!r}, device_sparse={device_sparse!r}. Pass device_dense "
            "alone, which is for both."
        )


def engine_of(process_set, device=""):
    """Returns the `HorovodEngine` of a process set that this worker is in.

    Args:
        process_set: `ProcessSet`.
        device: name of the device that carries messages. Default: Horovod's choice.

    Raises:
        ValueError: for other objects, for sets that Horovod does not know, and for sets without
            this worker.
    """
    if process_set is hvd.global_process_set:
        return HorovodEngine(device=device)
    require_known(process_set)
    if not process_set.included():
        raise ValueError(
            "process_set must contain this worker. Received: the process set of the ranks "
            f"{process_set.ranks} on rank {hvd.rank()}. Call this function only where "
            "process_set.included()."
        )
    return HorovodEngine(process_set, device)


def require_known(process_set):
    """Raises ValueError unless an object is a process set that Horovod knows."""
    if not isinstance(process_set, hvd.ProcessSet):
        raise ValueError(
            "process_set must be a ProcessSet of tf_onebit.horovod. Received: process_set="
            f"{process_set!r} of type {type(process_set).__name__}. Pass what "
            "hvd.add_process_set([0, 1]) returns."
        )
    if process_set.process_set_id is None:
        raise ValueError(
            f"process_set must be registered with Horovod. Received: {process_set}. Pass it to "
            'hvd.init(process_sets=[...]) first. After hvd.init(process_sets="dynamic") pass it '
            "to hvd.add_process_set, on all workers."
        )


def horovod_exchange(
    template,
    op,
    settings=(),
    process_set=hvd.global_process_set,
    device="",
    moments="after",
    by_node=False,
):
    """Returns a `GradientExchange` of `template` over Horovod, for one of Horovod's operations.

    Args:
        template: the user's exchange.
        op: `Average` or `Sum`.
        settings, moments: see `GradientExchange`.
        process_set: `ProcessSet` of the workers that exchange. Others train alone.
        device: see `engine_of`.
        by_node: whether the workers of a node add up their gradients before the exchange.
    """
    require_op(op)
    require_known(process_set)
    engine, is_mean = HorovodEngine(device=device), op == hvd.Average
    settings = [*settings, ("groups", "node" if by_node else "none")]
    exchange = GradientExchange(template, engine, is_mean, settings, moments=moments)
    if by_node:
        exchange.workers.join_by_node()
    if process_set is not hvd.global_process_set:
        is_in = process_set.included()
        exchange.workers.divide(engine_of(process_set, device) if is_in else LockstepEngine([None]))
    return exchange
