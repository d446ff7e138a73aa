"""Nodes of a plan: their links, and the order of the methods that their workers share."""

import dataclasses

from tf_onebit._preflight.command import announce
from tf_onebit.planner import links_of_nodes, with_more_workers


def makes_nodes(workers, workers_per_node):
    """Tells whether so many workers make several nodes, each with several workers."""
    return workers > workers_per_node > 1 and workers % workers_per_node == 0


def require_nodes(workers_per_node, world_sizes):
    """Raises ValueError unless so many workers on a node make several nodes of some job.

    Args:
        workers_per_node: number of workers on a node, or 1 for no plan of nodes.
        world_sizes: list of numbers of workers to plan for.
    """
    if workers_per_node > 1 and not any(makes_nodes(n, workers_per_node) for n in world_sizes):
        raise ValueError(
            "Several nodes share the workers of a job. Received: --workers-per-node "
            f"{workers_per_node} for {', '.join(map(str, world_sizes))} workers. Give another "
            f"number, or for example --workers {2 * workers_per_node}."
        )


@dataclasses.dataclass(frozen=True)
class NodeLinks:
    """Links within nodes and between them.

    Attributes:
        workers_per_node: number of workers on a node, or 1 without a plan of nodes.
        within: dictionary: `planner.Link` within a node, or None for those between workers.
        between: the same between the workers at the same place in all nodes, or None.
        measured_nodes: number of nodes that `between` was measured for.
    """

    workers_per_node: int = 1
    within: dict | None = None
    between: dict | None = None
    measured_nodes: int = 1

    def measured(self, workers):
        """Returns the links of the nodes of this job, if it has several with as many workers.

        Args:
            workers: `Links`.
        """
        if self.workers_per_node == 1 or not workers.are_on_nodes(self.workers_per_node):
            return self
        nodes = workers.world_size // self.workers_per_node
        announce(workers, f"links within and between {nodes} nodes")
        within, between = workers.measure_divided(self.workers_per_node)
        return dataclasses.replace(
            self, within=self.within or within, between=between, measured_nodes=nodes
        )

    def added_to(self, links, workers):
        """Returns links between a number of workers, with those of their nodes: dictionary.

        Args:
            links: dictionary: `planner.Link` by kind of collective between the workers.
            workers: number of workers.
        """
        if self.workers_per_node == 1:
            return links
        between = self.between or links
        if self.measured_nodes > 1:
            nodes = max(2, workers // self.workers_per_node)
            between = with_more_workers(between, self.measured_nodes, nodes)
        return links_of_nodes(links, self.within or links, between)


def in_order(alone, shared):
    """Returns methods from the one that changes training least: list.

    Args:
        alone: list of methods between workers, full precision first.
        shared: list of the same between nodes. These quantize fewer gradients.
    """
    full, *others = alone
    full_of_nodes, *others_of_nodes = shared
    pairs = zip(others_of_nodes, others, strict=True)
    return [full, full_of_nodes, *(method for pair in pairs for method in pair)]
