"""Timelines of two blocks: whole, in two fragments, and in two fragments that overlap."""

from theme import draw, timelines

STEPS, BLOCKS, FRAGMENTS, MESSAGE = 8, 2, 2, 3.0


def timeline(fragments, overlaps):
    """Returns the steps and the messages: two lists of (begin, length)."""
    steps, messages, time = [], [], 0.0
    for _ in range(BLOCKS * fragments):
        for _ in range(STEPS // fragments):
            steps.append((time, 0.9))
            time += 1.0
        messages.append((time, MESSAGE / fragments))
        if not overlaps:
            time += MESSAGE / fragments
    return steps, messages


ROWS = {
    "whole blocks": (1, False),
    "two fragments": (FRAGMENTS, False),
    "two fragments, with overlap": (FRAGMENTS, True),
}


def picture(figure, theme):
    colors = {"a step": theme.blue, "messages on the link": theme.orange}
    axes = timelines(figure, ROWS, colors)
    for place, arguments in enumerate(ROWS.values()):
        steps, messages = timeline(*arguments)
        for begin, length in steps:
            axes.barh(-place + 0.14, length, 0.26, begin, color=theme.blue)
        for begin, length in messages:
            axes.barh(-place - 0.14, length, 0.22, begin, color=theme.orange)


draw("block_timelines", (6, 3.6), picture)
