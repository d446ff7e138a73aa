"""The look of the pictures, in a light and a dark theme."""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

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
            "font.size": 12,  # a telephone shows pictures at two thirds of their size
            "axes.titlesize": 13,
            "svg.fonttype": "none",  # text that can be read, searched and enlarged
            "font.family": "sans-serif",
            "svg.hashsalt": name,
        }
        with mpl.rc_context(settings):
            figure = Figure(figsize=size, layout="constrained")
            picture(figure, theme)
            path = FOLDER / f"{name}-{theme_name}.svg"
            figure.savefig(path, transparent=True, metadata={"Date": None})


def timelines(figure: Figure, names: Sequence[str], colors: Mapping[str, str]) -> Axes:
    """Returns axes with time to the right, and a legend. Timeline i is around y = -i.

    Args:
        names: names of the timelines.
        colors: colors by what they stand for.
    """
    axes = figure.subplots()
    for place, name in enumerate(names):
        axes.text(0, -place + 0.34, name, va="bottom")
    for kind, color in colors.items():
        axes.barh(-9, 0, color=color, label=kind)
    axes.set_ylim(-len(names) + 0.6, 0.7)
    axes.set_yticks([])
    axes.set_xticks([])
    axes.set_xlabel("time")
    axes.spines["left"].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return axes


def drawing(figure: Figure, width: float, height: float) -> Axes:
    """Returns empty axes for boxes and arrows, with the origin below on the left."""
    axes = figure.subplots()
    axes.set_xlim(0, width)
    axes.set_ylim(0, height)
    axes.set_axis_off()
    return axes


def box(
    axes: Axes, place: tuple[float, float], size: tuple[float, float], text: str, color: str
) -> None:
    """Draws a box with text in its middle.

    Args:
        place: its corner below on the left.
        size: width and height.
    """
    (x, y), (width, height) = place, size
    style = "round,pad=0,rounding_size=0.12"
    axes.add_patch(
        FancyBboxPatch(
            place, width, height, style, edgecolor=color, facecolor="none", linewidth=1.4
        )
    )
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", linespacing=1.35)


def arrow(axes: Axes, begin: tuple[float, float], end: tuple[float, float], color: str) -> None:
    """Draws an arrow from a place to another."""
    style = {"arrowstyle": "-|>", "color": color, "linewidth": 1.4, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, begin, arrowprops=style)
