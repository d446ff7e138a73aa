"""Links of jobs: of one rate, of more workers than were measured, and of groups."""

import dataclasses
import math
from collections.abc import Mapping

from tf_onebit.planner.costs import Link, require_workers


def with_more_workers(links: Mapping[str, Link], measured: int, workers: int) -> dict[str, Link]:
    """Returns the links between another number of workers than in the measurement.

    Each worker keeps its bandwidth. Latency is assumed to grow with the logarithm of the number of
    workers. Measure with more workers to replace this assumption.

    Args:
        links: dictionary of `Link`.
        measured, workers: number of workers in the measurement, and the other number, at least 2.

    Raises:
        ValueError: for fewer than 2 workers.

    Example:
        >>> from tf_onebit.planner import uniform_links, with_more_workers
        >>> links = with_more_workers(uniform_links(125e6, 0.001), measured=2, workers=8)
        >>> links["all_gather"].latency_seconds
        0.003
    """
    require_workers(measured, 2)
    require_workers(workers, 2)
    factor = max(1.0, math.log2(workers) / math.log2(measured))
    return {
        kind: dataclasses.replace(link, latency_seconds=factor * link.latency_seconds)
        for kind, link in links.items()
    }


def uniform_links(bytes_per_second: float, latency_seconds: float) -> dict[str, Link]:
    """Returns links of one rate for all kinds of collectives: dictionary of `Link` without work.

    Raises:
        ValueError: for a rate of 0 or a negative latency.

    Example:
        >>> from tf_onebit.planner import uniform_links
        >>> sorted(uniform_links(bytes_per_second=125e6, latency_seconds=0.001))
        ['all_gather', 'all_reduce', 'all_to_all']
    """
    link = Link(latency_seconds, bytes_per_second)
    return dict.fromkeys(("all_to_all", "all_gather", "all_reduce"), link)


def within_group(kind: str) -> str:
    """Returns the kind of a collective of a group's members, for a kind of all workers.

    Example:
        >>> from tf_onebit.planner import within_group
        >>> within_group("all_gather")
        'all_gather within group'
    """
    return f"{kind} within group"


def links_of_groups(between: Mapping[str, Link], within: Mapping[str, Link]) -> dict[str, Link]:
    """Returns the links of workers that belong to model-parallel groups.

    Args:
        between: dictionary: `Link` by kind of collective between the groups.
        within: the same between the members of a group.

    Returns:
        Dictionary with the entries of `between`, and those of `within` by `within_group(kind)`.

    Example:
        >>> from tf_onebit.planner import links_of_groups, uniform_links
        >>> ethernet, memory = uniform_links(125e6, 1e-3), uniform_links(10e9, 1e-5)
        >>> links = links_of_groups(ethernet, within=memory)
        >>> links["all_gather"].bytes_per_second, links["all_gather within group"].bytes_per_second
        (125000000.0, 10000000000.0)
    """
    return {**between, **{within_group(kind): link for kind, link in within.items()}}
