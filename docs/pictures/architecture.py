"""The parts of the package, from a user's program down to compiled ops and collectives."""

from theme import arrow, box, draw, drawing

WIDTH, HEIGHT, GAP = 10.0, 0.78, 0.42
# Each row uses the rows below it. Boxes of a row share its width.
ROWS = (
    ("a program with Keras: model.fit, or a loop of its own",),
    (
        "strategies\ndistribute",
        "Horovod's names\nhorovod",
        "callbacks: blocks, tuning,\nMonitor, backups",
    ),
    ("one place in the optimizer, where gradients become exchanged gradients or updates",),
    (
        "exchanges: OneBit, Threshold,\nWarmStart, Delayed, your own",
        "equations of blocks:\nBMUF, BMUF-Adam",
    ),
    (
        "compiled ops, C++ and CUDA:\nencode, decode, update",
        "engines: TensorFlow's\ncollectives, or Horovod",
    ),
)


def picture(figure, theme):
    step = HEIGHT + GAP
    axes = drawing(figure, WIDTH, step * len(ROWS))
    colors = theme.faint, theme.violet, theme.blue, theme.green, theme.orange
    for row, (texts, color) in enumerate(zip(ROWS, colors, strict=True)):
        bottom = step * (len(ROWS) - row) - HEIGHT - 0.1
        width = (WIDTH - 0.2 - 0.2 * (len(texts) - 1)) / len(texts)
        for place, text in enumerate(texts):
            box(axes, (0.1 + place * (width + 0.2), bottom), (width, HEIGHT), text, color)
        if row + 1 < len(ROWS):
            arrow(axes, (WIDTH / 2, bottom), (WIDTH / 2, bottom - GAP), theme.faint)


draw("architecture", (8, 4.6), picture)
