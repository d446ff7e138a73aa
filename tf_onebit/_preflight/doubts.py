"""Doubts about the measured times of a model's steps."""

import itertools

from tf_onebit._formatting import format_milliseconds

# A larger spread of the times of a step shows that another program is at work.
_MOST_SCATTER = 0.25
# More samples take no less time, apart from noise of this part.
_TOLERANCE = 0.05


def doubts_about(computations, scatter, members):
    """Returns the doubts about times of steps: a list of one sentence, or an empty list.

    Args:
        computations: dictionary: `planner.Computation` by number of samples.
        scatter: dictionary: spread of the times of a step by number of samples, as a fraction of
            their median.
        members: dictionary: `Member` by number of members of a group.
    """
    doubts = [
        f"times with {size} samples differ by {100 * scatter[size]:.0f} %"
        for size in sorted(computations)
        if scatter.get(size, 0.0) > _MOST_SCATTER
    ]
    doubts += [
        f"times of a member of {size} differ by {100 * member.scatter:.0f} %"
        for size, member in members.items()
        if member.scatter > _MOST_SCATTER
    ]
    doubts += [
        f"{more} samples take {format_milliseconds(shorter.seconds)}, less than the "
        f"{format_milliseconds(longer.seconds)} of {fewer} samples"
        for (fewer, longer), (more, shorter) in itertools.pairwise(sorted(computations.items()))
        if shorter.seconds < (1 - _TOLERANCE) * longer.seconds
    ]
    if not doubts:
        return []
    return [
        f"These times are not reliable: {'; '.join(doubts)}. Another program is using the "
        "processors. Plan again when they are idle."
    ]
