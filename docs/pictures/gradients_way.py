"""The way of a gradient with two workers: what each does, and which messages cross the link."""

from theme import arrow, box, draw, drawing

WIDTH, BOX = 10.0, (3.3, 0.72)
COLUMNS = {"worker 0": 0.2, "worker 1": 6.5}
GAP = 1.3  # from a row to the next
# What a worker does with its gradients, and the collective that carries the result.
STAGES = (
    ("backward pass:\ngradient of its own data", None),
    ("encode: gradient + residual\n$\\to$ message + new residual", "AllToAll:\none shard to each"),
    ("aggregate its shard:\nsum of all messages", "AllGather:\nall shards to all"),
    ("decode, and update\nthe weights", None),
)


def picture(figure, theme):
    height = GAP * len(STAGES)
    axes = drawing(figure, WIDTH, height + 0.3)
    left, right = (x + BOX[0] / 2 for x in COLUMNS.values())
    for name, x in COLUMNS.items():
        axes.text(x + BOX[0] / 2, height + 0.1, name, ha="center", weight="bold")
    for row, (stage, message) in enumerate(STAGES):
        bottom = height - 0.15 - GAP * row - BOX[1]
        for x in COLUMNS.values():
            box(axes, (x, bottom), BOX, stage, theme.blue)
        if row + 1 == len(STAGES):
            return
        below = bottom - GAP + BOX[1]
        for middle in (left, right):
            arrow(axes, (middle, bottom), (middle, below), theme.faint)
        if message:
            inner = COLUMNS["worker 0"] + BOX[0], COLUMNS["worker 1"]
            for begin, end in (inner, inner[::-1]):
                arrow(axes, (begin, bottom), (end, below), theme.orange)
            middle = (bottom + below) / 2
            axes.text(WIDTH / 2, middle + 0.42, message, ha="center", va="bottom", size=10)


draw("gradients_way", (8, 4.6), picture)
