"""`tf-onebit plan`: measurements of a model, this machine and its links, and advice from them."""

import argparse
import dataclasses
import math
import re

from tf_onebit._preflight.command import run_command
from tf_onebit._preflight.source import require_source

DESCRIPTION = """\
Measures the time of a model's step on this machine, and the time of encoding and decoding. If
horovodrun or `tf-onebit launch` starts it, it also measures the links between the workers. A single
process assumes its links. Predicts the time of a step for each method and number of workers, and
names the longest part of the step. Recommends a method and its settings. Does not change the model.
"""
_BITS_PER_SECOND = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_RATE = re.compile(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)")
_ASSUMED_RATE, _ASSUMED_LATENCY_MS = "1gbit", 1.0
# One process decodes the messages of all workers to measure it. For more it would take long.
_MOST_WORKERS = 1024


def add_command(commands):
    """Adds `plan` to the commands of an `argparse` parser."""
    parser = commands.add_parser(
        "plan",
        help="predict the time of a step with several workers, and recommend a method",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model", help="file that Keras saved, or module:function that returns a compiled model"
    )
    parser.add_argument(
        "--per-replica-batch-size",
        type=_positive,
        default=64,
        metavar="N",
        help="samples of a worker in a step (default: 64)",
    )
    parser.add_argument(
        "--workers",
        type=_several,
        nargs="+",
        metavar="N",
        help="numbers of workers to plan for (default: those of the job, at least 2, then 2 and 4 "
        "times as many)",
    )
    parser.add_argument(
        "--bandwidth",
        type=_rate,
        metavar="RATE",
        help="bandwidth of each worker's link, such as 1gbit (default: measured in a job, else "
        f"{_ASSUMED_RATE})",
    )
    parser.add_argument(
        "--latency",
        type=_milliseconds,
        metavar="MS",
        help=f"latency of a message, with --bandwidth (default: {_ASSUMED_LATENCY_MS:g})",
    )
    parser.add_argument(
        "--target-density",
        type=_density,
        default=0.001,
        metavar="D",
        help="fraction of values that threshold-sparse updates send (default: 0.001)",
    )
    parser.add_argument(
        "--sync-period",
        type=_positive,
        default=16,
        metavar="STEPS",
        help="length of a block, for training in blocks (default: 16)",
    )
    parser.add_argument(
        "--unknown-size",
        type=_positive,
        metavar="N",
        help="value for input sizes that the model leaves open",
    )
    parser.add_argument(
        "--json", metavar="FILE", help="file for all results, with times in seconds"
    )
    parser.add_argument("--plot", metavar="FILE", help="file for a plot of the speed-ups")
    parser.set_defaults(run=run)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Results of `tf-onebit plan`, with times in seconds.

    Attributes:
        per_replica_batch_size: number of samples of a worker in a step.
        sizes: number of values of each gradient.
        computations: dictionary: `planner.Computation` by number of samples.
        alone_seconds: computation of a step of one worker while the others wait.
        links: dictionary: `planner.Link` by kind of collective.
        measured_workers: number of workers that links were measured between, or 1 if links are
            assumed.
        predictions: list of `planner.Prediction`.
        advice: dictionary: `planner.Advice` by number of workers.
        programs: dictionary: lines of Python that follow the advice, by number of workers.
        doubts: list of sentences on unreliable times.
    """

    per_replica_batch_size: int
    sizes: list
    computations: dict
    alone_seconds: float
    links: dict
    measured_workers: int
    predictions: list
    advice: dict
    programs: dict
    doubts: list


def run(options):
    """Runs the command and returns its exit status."""
    return run_command("plan", _run, options, check=lambda options: require_source(options.model))


def _run(options):
    from tf_onebit._preflight import report
    from tf_onebit._preflight.jobs import load_model, require_writable, workers_of_job
    from tf_onebit.planner import uniform_links

    workers = workers_of_job()
    if workers.rank == 0:
        require_writable(options.json, options.plot)
    if options.plot:
        report.require_plottable(options.plot)
    links = None
    if options.bandwidth is not None or workers.world_size == 1:
        rate = options.bandwidth or _rate(_ASSUMED_RATE)
        latency = _ASSUMED_LATENCY_MS if options.latency is None else options.latency
        links = uniform_links(rate / 8, 1e-3 * latency)
    elif options.latency is not None:
        raise ValueError(
            f"This job measures its links. Received: --latency {options.latency:g} without "
            "--bandwidth. Give both, or neither."
        )
    plan = make_plan(load_model(options.model), workers, links, options)
    if workers.rank == 0:
        print(report.text(plan))
        if options.json:
            report.write_json(plan, options.json)
        if options.plot:
            report.write_plot(plan, options.plot)


def make_plan(model, workers, links, options):
    """Measures a model, predicts times of its steps, and recommends a method.

    Args:
        model: Keras model, compiled. It is not changed.
        workers: `Links` or `Alone`.
        links: dictionary of `planner.Link`, or None to measure them.
        options: the command's arguments, from `argparse`.

    Returns:
        `Plan`.

    Raises:
        ValueError: for a model that cannot be measured.
    """
    from tf_onebit._preflight.measurements import measure
    from tf_onebit._preflight.program import lines_for
    from tf_onebit._preflight.suitable import (
        checked_first,
        checks_gradients_first,
        suitable,
        with_notes,
    )
    from tf_onebit.planner import advise, interpolated, predict

    least = max(2, workers.world_size)
    world_sizes = sorted(set(options.workers or [least, 2 * least, 4 * least]))
    measured = measure(model, workers, links, world_sizes, options)
    size = measured.per_replica_batch_size
    computations, methods = measured.computations, measured.methods
    if checks_gradients_first(model.optimizer):  # delayed gradients wait for the check, too
        computations = {n: c.without_overlap() for n, c in computations.items()}
        methods = {n: [checked_first(m, n) for m in methods[n]] for n in methods}
    computation, alone = interpolated(computations, size), measured.alone_seconds
    predictions = [
        predict(method, computation, measured.links_of(world_size), world_size, alone)
        for world_size in world_sizes
        for method in methods[world_size]
    ]
    advice = {
        world_size: advise(
            suitable(methods[world_size], model.optimizer),
            {size: computation} if measured.has_sparse else computations,
            measured.links_of(world_size),
            world_size,
            size,
            measured.sizes,
            alone,
        )
        for world_size in world_sizes
    }
    chosen = {
        n: next(method for method in methods[n] if method.name == one.method)
        for n, one in advice.items()
    }
    return Plan(
        size,
        measured.sizes,
        measured.computations,
        alone,
        measured.links,
        measured.measured_workers,
        predictions,
        {n: with_notes(one, chosen[n], model) for n, one in advice.items()},
        {n: lines_for(chosen[n], one.bucket_bytes) for n, one in advice.items()},
        measured.doubts,
    )


def _positive(text):
    return _whole(text, 1)


def _several(text):
    workers = _whole(text, 2)
    if workers > _MOST_WORKERS:
        raise argparse.ArgumentTypeError(f"It must be at most {_MOST_WORKERS}: {text!r}")
    return workers


def _whole(text, least):
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"It must be a whole number, at least {least}: {text!r}")
    return int(text)


def _density(text):
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(
            f"It must be a fraction of all values, such as 0.001: {text!r}"
        )
    return value


def _rate(text):
    match = _RATE.fullmatch(text)
    if not match or not float(match[1]) > 0:
        raise argparse.ArgumentTypeError(
            f"It must be a rate above 0 in kbit, mbit or gbit, such as 1gbit: {text!r}"
        )
    return float(match[1]) * _BITS_PER_SECOND[match[2]]


def _milliseconds(text):
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"It must be a time in ms, at least 0: {text!r}")
    return value
