"""Methods and links of nodes whose workers share the exchange with other nodes."""

import dataclasses
from collections.abc import Mapping

from tf_onebit.planner.costs import FLOAT_BYTES, Bucket, Collective, Link, require_workers
from tf_onebit.planner.methods import Method


def by_node(
    method: Method,
    workers_per_node: int,
    work_seconds_per_value: tuple[float, float] = (0.0, 0.0),
    exchanges_updates: bool = False,
) -> Method:
    """Returns the `Method` of nodes whose P workers exchange a P-th of the gradients each.

    For a bucket of S values, in which each node sends B bytes, each worker sends::

        within the node   4 S (P - 1) / P bytes, to add up the node's gradients
        between nodes     B / P bytes
        within the node   4 S (P - 1) / P bytes, to gather the result

    Args:
        method: `Method` with one worker on each node, that exchanges in every step.
        workers_per_node: P.
        work_seconds_per_value: time to add up gradients, and time to gather results, each for a
            value of the model.
        exchanges_updates: whether workers exchange updates. The node's gradients are then gathered
            before, too.

    Raises:
        ValueError: if `workers_per_node` is not a positive whole number, and for blocks.

    Example:
        >>> from tf_onebit.planner import Bucket, Collective, Method, by_node
        >>> one_bit = Method("1-bit", [Bucket(1e6, (Collective(0.004, "all_gather", 1e5),))])
        >>> shared = by_node(one_bit, workers_per_node=4)
        >>> [(c.kind, c.sent_bytes) for c in shared.buckets[0].collectives][:2]
        [('all_to_all within node', 3000000.0), ('all_gather between nodes', 25000.0)]
    """
    require_workers(workers_per_node)
    if method.sync_period is not None:
        raise ValueError(
            "The workers of a node share an exchange in every step. Received: the method "
            f"{method.name!r} with sync_period={method.sync_period}. Use predict(..., "
            "workers_per_node=...) for blocks."
        )
    sent_per_value = FLOAT_BYTES * (workers_per_node - 1) / workers_per_node
    adding, gathering = work_seconds_per_value

    def of_worker(bucket: Bucket) -> Bucket:
        size, sent = bucket.size, sent_per_value * bucket.size
        summing = Collective(0.0, "all_to_all within node", sent)
        gathered = Collective(adding * size, "all_gather within node", sent)
        between = [
            Collective(
                c.work_seconds / workers_per_node,
                f"{c.kind} between nodes",
                c.sent_bytes / workers_per_node,
            )
            for c in bucket.collectives
        ]
        work = bucket.work_seconds / workers_per_node
        if exchanges_updates:
            before, waiting = [summing, gathered], gathering * size
        else:
            before, waiting = [summing], adding * size
        first, *others = between
        first = dataclasses.replace(first, work_seconds=first.work_seconds + waiting)
        last = Collective(work, "all_gather within node", sent)
        return Bucket(size, (*before, first, *others, last), gathering * size)

    buckets = [of_worker(bucket) for bucket in method.buckets]
    # What workers gather are whole results, which the optimizer applies.
    return dataclasses.replace(
        method,
        name=f"{method.name}, by node",
        buckets=buckets,
        adds=False,
        workers_per_node=workers_per_node,
    )


def links_of_nodes(
    workers: Mapping[str, Link], within: Mapping[str, Link], between: Mapping[str, Link]
) -> dict[str, Link]:
    """Returns the links of workers that share nodes.

    Args:
        workers: dictionary: `Link` by kind of collective of all workers.
        within: the same between the workers of a node.
        between: the same between workers at the same place in all nodes, while the other workers
            of the nodes do the same.

    Returns:
        Dictionary with the entries of `workers`, and those of the others as `by_node` names them.

    Example:
        >>> from tf_onebit.planner import links_of_nodes, uniform_links
        >>> ethernet, memory = uniform_links(125e6, 1e-3), uniform_links(10e9, 1e-5)
        >>> links_of_nodes(ethernet, memory, ethernet)["all_gather within node"].bytes_per_second
        10000000000.0
    """
    return {
        **workers,
        **{f"{kind} within node": link for kind, link in within.items()},
        **{f"{kind} between nodes": link for kind, link in between.items()},
    }
