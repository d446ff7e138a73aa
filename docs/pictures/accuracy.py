"""Accuracy that exchanges lose, against the bytes that they send, from committed runs."""

import json
import pathlib
import sys

import numpy as np
from theme import draw

REPRODUCTION = pathlib.Path(__file__).parents[2] / "reproduction"
sys.path.append(str(REPRODUCTION))

from intervals import best_rate  # noqa: E402

MEASURED = REPRODUCTION / "measured"
FULL_PRECISION = "full precision"
# Rows of the files, with what they are called here, and where that stands beside the point.
OURS = {
    "1-bit": ("1-bit", (0, 8), "center"),
    "threshold": ("threshold, 1/1000", (6, -12), "left"),
    "threshold 1/100": ("threshold, 1/100", (0, -16), "center"),
}
OTHERS = {
    "PowerSGD, rank 1": ("PowerSGD, rank 1", (0, -16), "center"),
    "PowerSGD, rank 4": ("PowerSGD, rank 4", (6, 6), "left"),
    "deep gradient compression": ("Deep Gradient Compression", (6, 6), "left"),
}
SEEDS = range(1, 6)


def points(name):
    """Returns bytes per step and points lost, with what is sent in full precision: pair.

    Args:
        name: name of an optimizer, of which there is a file.
    """
    results = json.loads((MEASURED / f"optimizers_mlp_{name}.json").read_text())["results"][name]
    chosen = {row: best_rate(by_rate, SEEDS) for row, by_rate in results.items()}
    best = {row: one[1] for row, one in chosen.items() if one is not None}
    full = best.pop(FULL_PRECISION)
    accuracy = np.array([one["accuracy"] for one in full])
    lost = {
        row: (
            np.median([one["bytes"] for one in run]),
            np.mean(accuracy - [one["accuracy"] for one in run]),
        )
        for row, run in best.items()
    }
    return full[0]["bytes"], lost


def picture(figure, theme):
    panels = figure.subplots(2, 1, sharex=True, sharey=True)
    for axes, name in zip(panels, ("momentum", "adam"), strict=True):
        full, lost = points(name)
        axes.axhline(0, color=theme.faint, linewidth=0.8)
        for names, color, marker in ((OURS, theme.blue, "o"), (OTHERS, theme.orange, "s")):
            for row in sorted(lost.keys() & names.keys()):
                label, offset, side = names[row]
                place = full / lost[row][0], lost[row][1]
                axes.plot(*place, marker, color=color)
                axes.annotate(label, place, offset, textcoords="offset points", ha=side)
        axes.set_title({"momentum": "SGD, momentum 0.9", "adam": "Adam"}[name])
        axes.set_xscale("log")
        axes.set_xlim(6, 20_000)
        axes.set_ylabel("points of accuracy lost")
    panels[1].set_xlabel("times fewer bytes than full precision")
    panels[0].set_ylim(1.4, -0.1)


draw("accuracy", (6, 5.6), picture)
