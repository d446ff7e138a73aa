"""Argument `groups="node"`: workers of a node that share the exchange with other nodes."""

import warnings

import horovod.tensorflow as hvd

from tf_onebit._training.group_optimizer import require_no_auto
from tf_onebit.exchanges import FullPrecision
from tf_onebit.exchanges.schedule import AnyExchange, innermost


def resolved_groups(
    groups: object, exchange: AnyExchange, process_set: hvd.ProcessSet
) -> tuple[AnyExchange, bool]:
    """Returns the exchange between nodes, and whether the workers of a node share it.

    They do not if each node has one worker. If all workers are on one node, the exchange is in
    full precision, and a warning says so.

    Args:
        groups: "node". Other values are Horovod's, and mean no groups.
        exchange: the user's exchange.
        process_set: `ProcessSet` of the workers that exchange.

    Raises:
        ValueError: for another string, for nodes with different numbers of workers, and for what
            groups do not work with.
    """
    if not isinstance(groups, str):
        return exchange, False
    if groups != "node":
        raise ValueError(
            f'groups must be "node", or one of Horovod\'s values. Received: groups={groups!r}.'
        )
    if process_set is not hvd.global_process_set:
        raise ValueError(
            'With groups="node" all workers of the job exchange. Received: groups="node" and a '
            f"process_set of the ranks {process_set.ranks}. Leave one of them out."
        )
    inner = innermost(exchange)
    require_no_auto(exchange, 'groups="node"', who='With groups="node" all workers')
    if inner.trains_apart:
        raise ValueError(
            'With groups="node" workers exchange gradients in every step. Received: the exchange '
            'Local. Use another, or tf_onebit.callbacks.BlockMomentum(groups="node").'
        )
    if inner.takes_sparse:
        raise ValueError(
            'With groups="node" each worker exchanges slices of gradients, but transforms need '
            f"whole ones. Received: exchange={exchange!r}. Leave out groups or the transforms."
        )
    if not hvd.is_homogeneous():
        raise ValueError(
            'With groups="node" all nodes must have the same number of workers. Received: a job of '
            f"{hvd.size()} workers, with {hvd.local_size()} of them on the node of rank "
            f"{hvd.rank()}. Start as many on each node."
        )
    if hvd.local_size() == hvd.size() > 1:
        if hvd.rank() == 0 and inner.compresses:
            warnings.warn(
                'With groups="node" workers of a node exchange in full precision, and here all are '
                f"on one node. Received: {hvd.size()} workers with {type(inner).__name__}. Leave "
                "out groups, or start the job on several nodes.",
                stacklevel=3,
            )
        return FullPrecision(inner.bucket_bytes), False
    return exchange, hvd.local_size() > 1
