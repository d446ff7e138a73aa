"""Error feedback in four steps: what is sent, and what is kept for later."""

import numpy as np
from theme import draw

VALUES, STEPS = 12, 4


def quantized(values):
    """Returns the two levels of a column in place of its values (1-bit SGD)."""
    positive = values >= 0
    means = [part.mean() if part.size else 0.0 for part in (values[~positive], values[positive])]
    return np.where(positive, means[1], means[0])


def picture(figure, theme):
    gradient = np.random.default_rng(4).normal(size=VALUES)
    residual, sent = np.zeros(VALUES), np.zeros(VALUES)
    rows = figure.subplots(2, STEPS, sharex=True, sharey="row")
    places = np.arange(VALUES)
    for step, (above, below) in enumerate(rows.T, 1):
        message = quantized(gradient + residual)
        residual = gradient + residual - message
        sent = sent + message
        above.bar(places - 0.2, gradient, 0.4, color=theme.faint, label="gradient")
        above.bar(places + 0.2, message, 0.4, color=theme.blue, label="sent, one bit each")
        below.bar(places - 0.2, step * gradient, 0.4, color=theme.faint, label="sum of gradients")
        below.bar(places + 0.2, sent, 0.4, color=theme.orange, label="sum of what was sent")
        above.set_title(f"step {step}")
        for axes in (above, below):
            axes.axhline(0, color=theme.faint, linewidth=0.8)
            axes.set_xticks([])
    for axes in rows[:, 0]:
        figure.legend(
            *axes.get_legend_handles_labels(),
            loc="outside upper left" if axes is rows[0, 0] else "outside lower left",
            ncols=2,
            frameon=False,
        )


draw("error_feedback", (6, 4.4), picture)
