"""Which times of a model's steps are not to be relied on."""

import itertools

from tf_onebit.formatting import format_number

# Times of the same step differ by this part of them where something else is at work.
_MOST_SCATTER = 0.25
# A step of more samples takes no less time, but for what times differ by anyway.
_TOLERANCE = 0.05


def doubts_about(computations, scatter):
    """Doubts the times of steps: a list of one sentence, or of none.

    Args:
        computations: dictionary: `planner.Computation` by number of samples.
        scatter: dictionary: by how much times of a step differed, as a part of their median.
    """
    doubts = [
        f"times with {size} samples differ by {100 * scatter[size]:.0f} %"
        for size in sorted(computations)
        if scatter[size] > _MOST_SCATTER
    ]
    doubts += [
        f"{more} samples take {_ms(shorter)}, less than {fewer} with {_ms(longer)}"
        for (fewer, longer), (more, shorter) in itertools.pairwise(sorted(computations.items()))
        if shorter.seconds < (1 - _TOLERANCE) * longer.seconds
    ]
    if not doubts:
        return []
    return [
        f"These times are not reliable: {'; '.join(doubts)}. Another program is using the "
        "processors. Plan again when they are idle."
    ]


def _ms(computation):
    return f"{format_number(1e3 * computation.seconds)} ms"
