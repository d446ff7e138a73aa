"""Model-parallel groups of a plan: their members, their exchanges and their links."""

from tf_onebit._preflight.command import announce
from tf_onebit._preflight.effects import as_computed, as_exchanged
from tf_onebit._preflight.member import measure_member
from tf_onebit._preflight.methods import Candidates, Exchanges, runs_for
from tf_onebit.exchanges import FullPrecision
from tf_onebit.planner import Method, links_of_groups, predict, with_more_workers

# A single group has no others to exchange gradients with.
_NO_EXCHANGE = Method("no exchange", [], template=FullPrecision())


def measure_members(make_model, workers, world_sizes, options):
    """Measures a member of groups of each size that is asked for.

    In a step, all groups together take as many samples as workers without groups do.

    Args:
        make_model: function that returns the model. Each one that it returns is split.
        workers: `Links` or `Alone`.
        world_sizes: list of numbers of workers to plan for.
        options: object with `members`, a list of numbers, `per_replica_batch_size`,
            `unknown_size` and `blocks`, a `Blocks`.

    Returns:
        Dictionary: `Member` by number of members.

    Raises:
        ValueError: for a number of members that divides no number of workers, and for a model
            that cannot be split or measured.
    """
    for members in options.members:
        if not _counts(world_sizes, members):
            raise ValueError(
                "The members of all groups are the workers of a job. Received: --members "
                f"{members}, which divides none of the numbers of workers "
                f"{', '.join(map(str, world_sizes))}. Give another number, or for example "
                f"--workers {2 * members}."
            )
    return {
        members: measure_member(
            make_model(),
            members,
            members * options.per_replica_batch_size,
            workers,
            options.unknown_size,
            options.blocks,
        )
        for members in sorted(set(options.members))
    }


def predict_groups(members, optimizer, workers, world_sizes, measured, links_within, options):
    """Measures the exchanges and links of groups, and predicts their steps.

    Args:
        members: what `measure_members` returned.
        optimizer: Keras optimizer of the model.
        workers, world_sizes: see `measure_members`.
        measured: `Measurements` of the whole model.
        links_within: dictionary of `planner.Link` within a group, or None for those that are
            measured, or assumed between workers.
        options: object with `target_density` and `blocks`.

    Returns:
        Dictionary: list of pairs (`planner.Method`, `planner.Prediction`) by number of workers, for
        those that groups divide.
    """
    candidates = Candidates(optimizer, options.target_density)
    pairs = {}
    for size, member in members.items():
        computation = as_computed(member.computation, optimizer)
        here, between = _links(workers, measured, size)
        for count in _counts(world_sizes, size):
            methods = [_NO_EXCHANGE]
            if count > 1:
                announce(workers, f"the exchange between {count} groups of {size}")
                runs = runs_for(count * size, workers, world_sizes)
                exchanges = Exchanges(candidates, member.specs, member.rows, workers, count, **runs)
                methods = [
                    *exchanges.methods(),
                    *exchanges.blocks(member.ends, measured.block_seconds, options.blocks),
                ]
            links = links_of_groups(between(count), links_within or here)
            for method in as_exchanged(methods, count, optimizer):
                prediction = predict(
                    method,
                    computation,
                    links,
                    count,
                    measured.alone_seconds,
                    activations=member.activations,
                )
                pairs.setdefault(count * size, []).append((method, prediction))
    return pairs


def _counts(world_sizes, members):
    """Returns the numbers of groups that the numbers of workers make: list."""
    return [n // members for n in world_sizes if n % members == 0]


def _links(workers, measured, members):
    """Returns links within a group, and a function from a number of groups to links between them.

    They are measured if the workers of this job form several groups.
    """
    if measured.measured_workers == 1:
        return measured.links, lambda count: measured.links
    count_here, rest = divmod(measured.measured_workers, members)
    if rest or count_here < 2:
        return measured.links_of(members), lambda count: measured.links_of(max(2, count))
    announce(workers, f"links within and between {count_here} groups of {members}")
    within, between = workers.measure_divided(members)
    return within, lambda count: with_more_workers(between, count_here, max(2, count))
