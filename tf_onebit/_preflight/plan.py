"""`tf-onebit plan`: the command, its options, and the links that it is told."""

import argparse
import functools
import math
import re

from tf_onebit._preflight.command import run_command
from tf_onebit._preflight.source import require_source

DESCRIPTION = """\
Measures the time of a model's step on this machine, and the time of encoding and decoding. If
horovodrun or `tf-onebit launch` starts it, it also measures the links between the workers. A single
process assumes its links. Predicts the time of a step for each method and number of workers, and
names the longest part of the step. Recommends a method and its settings. Does not change the model.
With --members, it also plans for groups of workers that hold one model together, and tells whether
that pays. With --workers-per-node, it also plans for nodes whose workers add up their gradients.
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
        "--members",
        type=_group_size,
        nargs="+",
        default=[],
        metavar="M",
        help="also plan for groups of M workers that hold one model together (model parallelism)",
    )
    parser.add_argument(
        "--workers-per-node",
        type=_positive,
        default=1,
        metavar="P",
        help="also plan for nodes with P workers each, that share the exchange with other nodes",
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
        "--bandwidth-within",
        type=_rate,
        metavar="RATE",
        help="bandwidth within a group or node, with --members or --workers-per-node (default: as "
        "between workers)",
    )
    parser.add_argument(
        "--latency-within",
        type=_milliseconds,
        metavar="MS",
        help="latency of a message within a group or node, with --bandwidth-within",
    )
    parser.add_argument(
        "--target-density",
        type=_density,
        metavar="D",
        help="fraction of values that threshold-sparse updates send (default: that of the "
        "optimizer's own Threshold, or 0.001)",
    )
    parser.add_argument(
        "--sync-period",
        type=_positive,
        default=16,
        metavar="STEPS",
        help="length of a block, for training in blocks (default: 16)",
    )
    parser.add_argument(
        "--fragments",
        type=_positive,
        default=1,
        metavar="P",
        help="parts of the model that are exchanged in turn within a block (default: 1)",
    )
    parser.add_argument(
        "--overlap",
        type=_at_least_0,
        default=0,
        metavar="STEPS",
        help="steps that workers make while a part is exchanged (default: 0)",
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


def run(options):
    """Runs the command and returns its exit status."""
    return run_command("plan", _run, options, check=lambda options: require_source(options.model))


def _run(options):
    from tf_onebit._preflight import report
    from tf_onebit._preflight.block_ends import Blocks
    from tf_onebit._preflight.jobs import load_model, require_writable, workers_of_job
    from tf_onebit._preflight.planning import make_plan

    options.blocks = Blocks(options.sync_period, options.fragments, options.overlap)
    if options.members and options.overlap:
        raise ValueError(
            "Groups of processes that hold one model cannot train on while they synchronize. "
            f"Received: --members {' '.join(map(str, options.members))} with --overlap "
            f"{options.overlap}. Leave out one of them. Groups may have --fragments."
        )
    in_groups = bool(options.members) or options.workers_per_node > 1
    workers = workers_of_job(in_groups and options.bandwidth is None)
    if workers.rank == 0:
        require_writable(options.json, options.plot)
    if options.plot:
        report.require_plottable(options.plot)
    make_model = functools.partial(load_model, options.model)
    plan = make_plan(make_model, workers, *_told_links(options, workers), options)
    if workers.rank == 0:
        print(report.text(plan))
        if options.json:
            report.write_json(plan, options.json)
        if options.plot:
            report.write_plot(plan, options.plot)


def _told_links(options, workers):
    """Returns the links between workers and those within groups, each None to measure them."""
    links = links_within = None
    if options.bandwidth is not None or workers.world_size == 1:
        links = _uniform_links(options.bandwidth or _rate(_ASSUMED_RATE), options.latency)
    elif options.latency is not None:
        raise ValueError(
            f"This job measures its links. Received: --latency {options.latency:g} without "
            "--bandwidth. Give both, or neither."
        )
    if options.bandwidth_within is not None:
        links_within = _uniform_links(options.bandwidth_within, options.latency_within)
    elif options.latency_within is not None:
        raise ValueError(
            "Latency and bandwidth describe the links within a group together. Received: "
            f"--latency-within {options.latency_within:g} without --bandwidth-within. Give both, "
            "or neither."
        )
    return links, links_within


def _uniform_links(rate, latency):
    from tf_onebit.planner import uniform_links

    return uniform_links(rate / 8, 1e-3 * (_ASSUMED_LATENCY_MS if latency is None else latency))


def _positive(text):
    return _whole(text, 1)


def _at_least_0(text):
    return _whole(text, 0)


def _group_size(text):
    return _whole(text, 2)


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
