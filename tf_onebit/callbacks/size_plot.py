"""The plot of minibatch size over samples."""


def plot_sizes(history, position, path):
    """Writes a plot of the minibatch size and the sizes that were tried, over samples.

    Args:
        history: `history` of `AutoMinibatchSize`.
        position: number of samples up to now.
        path: path of an image file.

    Raises:
        ImportError: without Matplotlib.
        ValueError: if the history is empty.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import FuncFormatter, NullFormatter
    except ImportError as error:
        raise ImportError(
            "A plot needs Matplotlib, which is not installed. Run: pip install matplotlib."
        ) from error
    if not history["position"]:
        raise ValueError(
            "There is nothing to plot before training has begun. Received: an empty history. Call "
            "plot after model.fit."
        )
    sizes, positions = history["global_batch_size"], history["position"]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    # Crosses are the sizes tried, dots the sizes taken, and the line the size in training.
    tried = [
        (p, size) for p, ts in zip(positions, history["trials"], strict=True) for size, _ in ts
    ]
    taken = [(p, s) for p, s, ts in zip(positions, sizes, history["trials"], strict=True) if ts]
    axes.scatter(*_columns(tried), marker="x", color="tab:gray", s=25, label="tried", zorder=2)
    axes.scatter(*_columns(taken), color="tab:blue", s=25, label="taken", zorder=3)
    axes.step(
        [*positions, max(position, positions[-1])],
        [*sizes, sizes[-1]],
        where="post",
        color="tab:blue",
        label="in training",
        zorder=1,
    )
    axes.set_yscale("log", base=2)
    axes.set_yticks(sorted(set(sizes) | {size for _, size in tried}))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(left=positions[0])
    axes.set_xlabel("samples")
    axes.set_ylabel("minibatch size (samples)")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)


def _columns(points):
    return ([x for x, _ in points], [y for _, y in points])
