"""Held-out accuracy in the course of training with each method, from a committed run."""

import json
import pathlib

from theme import draw

MEASURED = pathlib.Path(__file__).parents[2] / "reproduction/measured/curves.json"


def picture(figure, theme):
    curves = json.loads(MEASURED.read_text())["curves"]
    colors = theme.text, theme.blue, theme.green, theme.violet, theme.red
    axes = figure.subplots()
    for (name, curve), color in zip(curves.items(), colors, strict=True):
        frames = [number / 1e6 for number in curve["frames"]]
        accuracy = [100 * part for part in curve["held_out_accuracy"]]
        axes.plot(frames, accuracy, "o-", color=color, markersize=4, label=name)
    axes.set_xlabel("million frames that all workers have seen")
    axes.set_ylabel("held-out frame accuracy, %")
    axes.set_ylim(bottom=0)
    figure.legend(loc="outside right center", frameon=False)


draw("curves", (7.3, 3.4), picture)
