"""A plan as text, as JSON and as a plot."""

import dataclasses
import json
import pathlib

from tf_onebit._formatting import format_milliseconds, format_number

_HEADER = ("", "ms per step", "speed-up", "MB sent", "longest")
# Workers share processors if a step among others takes more than this many times as long.
_CROWDED = 1.1
# Of a plot, so that they can be told apart.
_MOST_LINES = 4
_BOTTLENECKS = {"computation": "computation", "coding": "encoding", "sending": "sending"}


def text(plan):
    """Returns the text of a plan."""
    lines = [_about_links(plan), _about_computation(plan), *_about_members(plan), *plan.doubts]
    for workers in sorted({prediction.workers for prediction in plan.predictions}):
        rows = [p for p in plan.predictions if p.workers == workers]
        lines += [
            "",
            f"{workers} workers, {plan.per_replica_batch_size} samples each per step",
            *_table(rows),
        ]
    for workers, advice in plan.advice.items():
        lines += ["", f"Advice for {workers} workers: {advice.method}"]
        sentences = [*advice.sentences]
        if workers in plan.group_advice:
            sentences += plan.group_advice[workers].sentences
        lines += [f"- {sentence}" for sentence in sentences]
    for program in dict.fromkeys(map(tuple, plan.programs.values())):
        numbers = [str(workers) for workers, one in plan.programs.items() if tuple(one) == program]
        lines += ["", f"In the program, for {', '.join(numbers)} workers:"]
        lines += [f"    {line}" for line in program]
    return "\n".join(lines)


def _about_links(plan):
    link = plan.links["all_gather"]
    rate = f"{format_number(8e-6 * link.bytes_per_second, 4)} Mbit/s"
    latency = f"{format_number(1e3 * link.latency_seconds, 2)} ms"
    if plan.measured_workers == 1:
        return f"Links: {rate} and {latency}, assumed."
    return (
        f"Links: {rate} and {latency} for the shortest message, measured between "
        f"{plan.measured_workers} workers."
    )


def _about_computation(plan):
    steps = [
        f"{format_number(1e3 * computation.seconds, 4)} ms with {size} samples"
        for size, computation in sorted(plan.computations.items())
    ]
    values = sum(plan.sizes) / 1e6
    text = f"Computation: the model has {format_number(values)} million trained values. A step "
    text += f"takes {', '.join(steps)}."
    computing = plan.predictions[0].computation_seconds
    if computing > _CROWDED * plan.alone_seconds:
        text += (
            "\nWorkers share processors: one worker alone takes "
            f"{format_number(1e3 * plan.alone_seconds, 4)} ms. Speed-ups are relative to that."
        )
    return text


def _about_members(plan):
    """Describes groups: list of one line for each number of members."""
    lines = []
    for members, member in plan.members.items():
        activations = member.activations
        messages = len(activations.forward) + len(activations.backward)
        sent, held, whole = (
            format_number(size / 1e6)
            for size in (activations.sent_bytes, member.held_bytes, member.whole_bytes)
        )
        lines.append(
            f"Groups of {members}: a step of {members * plan.per_replica_batch_size} samples takes "
            f"{format_milliseconds(member.computation.seconds)} without its {messages} messages "
            f"of {sent} MB in all. A member holds {held} of {whole} MB of weights, gradients and "
            "the optimizer's state."
        )
    return lines


def _table(predictions):
    rows = [_HEADER]
    for prediction in predictions:
        rows.append(
            (
                _row_name(prediction),
                f"{1e3 * prediction.step_seconds:.1f}",
                f"{prediction.speed_up:.2f}",
                format_number(prediction.sent_bytes / 1e6),
                _BOTTLENECKS[prediction.bottleneck],
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if i in (0, len(row) - 1) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _row_name(prediction):
    if prediction.members == 1:
        return prediction.method
    return f"{prediction.groups}x{prediction.members}, {prediction.method}"


def write_json(plan, path):
    """Writes all of a plan to a file, with times in seconds."""
    content = dataclasses.asdict(plan)
    pathlib.Path(path).write_text(json.dumps(content, indent=1) + "\n")


def require_plottable(path):
    """Raises ValueError if no plot can be drawn, or none of the file's type."""
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError as error:
        raise ValueError(
            f"The plot needs Matplotlib, which is not installed. Received: --plot {path}. Install "
            "it: python -m pip install matplotlib"
        ) from error
    known = sorted(FigureCanvasBase.get_supported_filetypes())
    if pathlib.Path(path).suffix[1:] not in known:
        raise ValueError(
            f"The name of a plot must end in one of {', '.join(known)}. Received: {path}."
        )


def write_plot(plan, path):
    """Writes a plot of the largest speed-ups. The name's ending gives the type of the file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.add_subplot()
    numbers = sorted({prediction.workers for prediction in plan.predictions})
    axes.plot([1, *numbers], [1, *numbers], color="0.7", linestyle="--", label="ideal")
    for (members, method), speed_ups in lines_of_plot(plan):
        label = method if members == 1 else f"groups of {members}, {method}"
        axes.plot([1, *speed_ups], [1, *speed_ups.values()], "o-", markersize=4, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    axes.set_xlabel("workers")
    axes.set_ylabel("predicted speed-up over one worker")
    axes.set_title(
        f"{format_number(sum(plan.sizes) / 1e6)} million trained values, "
        f"{plan.per_replica_batch_size} samples per worker and step\n{_about_links(plan)}"
    )
    figure.legend(loc="outside right upper", fontsize="small")
    axes.grid(alpha=0.3)
    figure.savefig(path)


def lines_of_plot(plan):
    """Returns the speed-ups of the first method, and of the fastest others.

    Returns:
        List of pairs. The first part is a pair of a number of members and the name of a method. The
        second part is a dictionary: speed-up by number of workers.
    """
    lines = {}
    for one in plan.predictions:
        lines.setdefault((one.members, one.method), {})[one.workers] = one.speed_up
    first, *others = lines.items()
    others.sort(key=lambda line: max(line[1].values()), reverse=True)
    return [first, *others[: _MOST_LINES - 1]]
