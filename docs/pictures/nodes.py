"""The way of a gradient with two nodes of two workers: slices within nodes and between them."""

from theme import arrow, box, draw, drawing

WIDTH, BOX = 14.6, (2.4, 0.72)
GAP = 1.35  # from a row to the next
# By node: the left sides of the boxes of its workers.
NODES = {"node 0": (0.3, 3.0), "node 1": (6.6, 9.3)}
# What each worker has, and the collective that carries it on.
STAGES = (
    ("gradient of\nits own data", "within a node:\nsums of slices", "within"),
    ("slice {} of the\nnode's sum", "between nodes:\nslices, by OneBit", "between"),
    ("slice {} of\nthe mean", "within a node:\nall slices", "within"),
    ("mean of all\nworkers", None, None),
)


def bottom_of(row):
    """Returns the height of the lower side of the boxes of a row."""
    return GAP * (len(STAGES) - row) - 0.2 - BOX[1]


def picture(figure, theme):
    height = GAP * len(STAGES)
    axes = drawing(figure, WIDTH, height + 0.3)
    colors = {"within": theme.green, "between": theme.orange}
    for node, places in NODES.items():
        axes.text(
            (places[0] + places[1] + BOX[0]) / 2, height + 0.1, node, ha="center", weight="bold"
        )
    for row, (text, message, kind) in enumerate(STAGES):
        bottom = bottom_of(row)
        for places in NODES.values():
            for place, x in enumerate(places):
                box(axes, (x, bottom), BOX, text.format(place), theme.blue)
        if message is None:
            return
        below = bottom_of(row + 1) + BOX[1]
        for begin, end in crossings(kind):
            arrow(axes, (begin, bottom), (end, below), colors[kind])
        right = max(NODES["node 1"]) + BOX[0]
        axes.text(right - 0.6, (bottom + below) / 2, message, va="center", size=11)


def crossings(kind):
    """Returns pairs of horizontal places: from whom to whom messages go."""
    by_node = [[x + BOX[0] / 2 for x in places] for places in NODES.values()]
    groups = by_node if kind == "within" else list(zip(*by_node, strict=True))
    return [(begin, end) for group in groups for begin in group for end in group]


draw("nodes", (9, 5), picture)
