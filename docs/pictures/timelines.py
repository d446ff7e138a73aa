"""Timelines of three steps: when a worker computes, and when its link carries messages."""

from theme import draw, timelines

FORWARD, BACKWARD, UPDATE, MESSAGE = 1.0, 2.0, 0.4, 2.0
BUCKETS, STEPS = 4, 3


def passes(begin):
    """Returns the computation of a worker's gradients: list."""
    return [("forward", begin, FORWARD), ("backward", begin + FORWARD, BACKWARD)]


def without_overlap():
    """Messages leave when all gradients are there."""
    work, link, time = [], [], 0.0
    for _ in range(STEPS):
        end = time + FORWARD + BACKWARD
        work += passes(time)
        link.append((end, MESSAGE))
        work.append(("update", end + MESSAGE, UPDATE))
        time = end + MESSAGE + UPDATE
    return work, link


def overlapped():
    """Each bucket of gradients leaves as soon as the backward pass has made it."""
    work, link, time = [], [], 0.0
    for _ in range(STEPS):
        work += passes(time)
        free = 0.0
        for bucket in range(1, BUCKETS + 1):
            begin = max(free, time + FORWARD + BACKWARD * bucket / BUCKETS)
            free = begin + MESSAGE / BUCKETS
            link.append((begin, 0.95 * MESSAGE / BUCKETS))
        work.append(("update", free, UPDATE))
        time = free + UPDATE
    return work, link


def delayed():
    """The messages of a step travel during the next one."""
    work, link, time = [], [], 0.0
    for step in range(STEPS):
        end = time + FORWARD + BACKWARD
        work += passes(time)
        if step:
            link.append((time, MESSAGE))
        work.append(("update", end, UPDATE))
        time = end + UPDATE
    return work, link


def blocks():
    """Weights are averaged once, at the end of a block."""
    work, time = [], 0.0
    for _ in range(STEPS):
        work += passes(time)
        work.append(("update", time + FORWARD + BACKWARD, UPDATE))
        time += FORWARD + BACKWARD + UPDATE
    return work, [(time, MESSAGE)]


ROWS = {
    "without overlap": without_overlap,
    "with overlap": overlapped,
    "Delayed": delayed,
    "blocks (here of 3 steps)": blocks,
}


def picture(figure, theme):
    colors = {"forward": theme.blue, "backward": theme.green, "update": theme.violet}
    axes = timelines(figure, ROWS, colors | {"messages on the link": theme.orange})
    for place, timeline in enumerate(ROWS.values()):
        work, link = timeline()
        for kind, begin, length in work:
            axes.barh(-place + 0.14, length, 0.26, begin, color=colors[kind])
        for begin, length in link:
            axes.barh(-place - 0.14, length, 0.22, begin, color=theme.orange)


draw("timelines", (6, 4.6), picture)
