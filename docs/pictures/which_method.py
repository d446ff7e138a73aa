"""Which method is the mildest of the fast ones, by the planner's arithmetic."""

import functools

import numpy as np
from matplotlib.colors import ListedColormap
from theme import draw

from tf_onebit.planner import Bucket, Collective, Computation, Method, predict, uniform_links

VALUES, WORKERS, BUCKETS = 45e6, 8, 10
LATENCY_SECONDS = 50e-6
ENCODE, DECODE = 0.7e-9, 0.2e-9  # seconds per value, of one core: docs/measured.md
SYNC_PERIOD = 16
SHARE = (WORKERS - 1) / WORKERS


def _method(name, bits, kinds, work, **arguments):
    """Returns a method that sends `bits` per value by collectives of these kinds."""
    size = VALUES / BUCKETS
    encode, decode = work
    stages = [
        Collective(encode * size / len(kinds), kind, SHARE * bits / 8 * size / len(kinds))
        for kind in kinds
    ]
    return Method(name, BUCKETS * [Bucket(size, tuple(stages), decode * size)], **arguments)


def methods():
    """Returns methods from the mildest to the one that changes training most: list."""
    two_stages, one_stage = ("all_to_all", "all_gather"), ("all_gather",)
    return [
        _method("full precision", 64, ("all_reduce",), (0.0, 0.0)),
        _method("1-bit", 2.3, two_stages, (1.3 * ENCODE, DECODE)),
        _method("1-bit, delayed", 2.3, two_stages, (1.3 * ENCODE, DECODE), delay=1),
        # Each worker sends a thousandth of its values, with 14 bits each, to all others.
        _method("threshold", 0.014 * WORKERS, one_stage, (ENCODE, 0.01 * DECODE)),
        _method(
            "blocks of 16, 1-bit",
            2.3,
            two_stages,
            (1.3 * ENCODE, DECODE),
            sync_period=SYNC_PERIOD,
        ),
    ]


@functools.cache
def mildest(rate, step_seconds):
    """Returns the number of the first method that is within a tenth of the fastest."""
    links = uniform_links(rate / 8, LATENCY_SECONDS)
    computation = Computation(step_seconds / 3, 2 * step_seconds / 3)
    seconds = [predict(m, computation, links, WORKERS).step_seconds for m in methods()]
    return next(i for i, one in enumerate(seconds) if one <= 1.1 * min(seconds))


def picture(figure, theme):
    rates = np.geomspace(1e7, 1e11, 33)
    steps = np.geomspace(0.1, 10, 25)
    chosen = np.array([[mildest(rate, step) for rate in rates] for step in steps])
    colors = [theme.faint, theme.blue, theme.violet, theme.green, theme.orange]
    axes = figure.subplots()
    axes.pcolormesh(
        rates / 1e6,
        steps,
        chosen,
        cmap=ListedColormap(colors),
        vmin=-0.5,
        vmax=4.5,
        rasterized=True,
    )
    for method, color in zip(methods(), colors, strict=True):
        axes.plot([], [], "s", color=color, label=method.name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("bandwidth of a worker's link [Mbit/s]")
    axes.set_ylabel("computation of a step [s], one core")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)


draw("which_method", (6, 4.8), picture)
