"""The look of the pictures, in a light and a dark theme."""

import pathlib
from collections.abc import Callable
from typing import NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure

FOLDER = pathlib.Path(__file__).parents[1] / "_static" / "pictures"


class Theme(NamedTuple):
    """Colors of a theme. Those of things can be told apart by people who are color-blind."""

    text: str
    faint: str
    blue: str
    orange: str
    green: str
    red: str
    violet: str


THEMES = {
    "light": Theme("#1f2328", "#8c959f", "#0072b2", "#c05a00", "#00805c", "#b3261e", "#7a4fa3"),
    "dark": Theme("#d0d7de", "#6e7781", "#56b4e9", "#f0a030", "#4cc9a0", "#ff8a80", "#c9a6f0"),
}


def draw(name: str, size: tuple[float, float], picture: Callable[[Figure, Theme], None]) -> None:
    """Draws a picture in both themes, as SVG files that are the same in every run.

    Args:
        name: name of the files.
        size: width and height in inches.
        picture: function that draws into a figure.
    """
    FOLDER.mkdir(exist_ok=True)
    for theme_name, theme in THEMES.items():
        settings = {
            **dict.fromkeys(("text.color", "axes.labelcolor", "axes.titlecolor"), theme.text),
            **dict.fromkeys(("xtick.color", "ytick.color"), theme.text),
            **dict.fromkeys(("axes.edgecolor", "grid.color"), theme.faint),
            **dict.fromkeys(("axes.facecolor", "figure.facecolor"), "none"),
            **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
            "font.size": 11,
            "axes.titlesize": 12,
            "svg.fonttype": "none",  # text that can be read, searched and enlarged
            "font.family": "sans-serif",
            "svg.hashsalt": name,
        }
        with mpl.rc_context(settings):
            figure = Figure(figsize=size, layout="constrained")
            picture(figure, theme)
            path = FOLDER / f"{name}-{theme_name}.svg"
            figure.savefig(path, transparent=True, metadata={"Date": None})
