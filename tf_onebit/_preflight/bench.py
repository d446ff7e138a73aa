"""`tf-onebit bench`: times of encoding, decoding and collectives on this machine."""

import argparse
import dataclasses
import json
import pathlib

from tf_onebit._preflight.command import run_command

_ROW_SIZE = 2048


def add_command(commands):
    """Adds `bench` to the commands of an `argparse` parser."""
    parser = commands.add_parser(
        "bench",
        help="measure the time of encoding, decoding and collectives",
        description="Measures the time of encoding and decoding on this machine, in nanoseconds "
        "per value of a gradient. If horovodrun or `tf-onebit launch` starts it, it also measures "
        "collectives between the workers. All workers run at once.",
    )
    parser.add_argument(
        "--values",
        type=_number_of_values,
        default=8 * 2**20,
        metavar="N",
        help=f"number of values of the gradient (default: {8 * 2**20})",
    )
    parser.add_argument("--json", metavar="FILE", help="file for the figures")
    parser.set_defaults(run=run)


def run(options):
    """Runs the command and returns its exit status."""
    return run_command("bench", _run, options)


def _run(options):
    from tf_onebit._preflight.jobs import require_writable, workers_of_job

    workers = workers_of_job()
    if workers.rank == 0:
        require_writable(options.json)
    values = options.values // _ROW_SIZE * _ROW_SIZE
    exchanges = measure_exchanges(values, workers)
    links = workers.measure() if workers.world_size > 1 else {}
    if workers.rank == 0:
        print(_text(exchanges, links, values, max(2, workers.world_size)))
        if options.json:
            content = {
                "values": values,
                "workers": workers.world_size,
                "nanoseconds_per_value": exchanges,
                "links": {kind: dataclasses.asdict(link) for kind, link in links.items()},
            }
            pathlib.Path(options.json).write_text(json.dumps(content, indent=1) + "\n")


def measure_exchanges(values, workers):
    """Returns the nanoseconds per value of each stage: dictionary of lists by method.

    Args:
        values: number of values of a gradient.
        workers: `Links` or `Alone`. A worker alone does the work of one of two.
    """
    from tf_onebit._measurement import measure_exchange
    from tf_onebit.exchanges import FullPrecision, GradientSpec, OneBit, Threshold

    specs = [GradientSpec("gradient", (values // _ROW_SIZE, _ROW_SIZE), "float32")]
    stages = {}
    for name, exchange in (
        ("full precision", FullPrecision()),
        ("1-bit", OneBit()),
        ("threshold", Threshold()),
        ("threshold, Golomb-Rice", Threshold(coding="golomb_rice")),
    ):
        workers.wait_for_all()
        (bucket,) = measure_exchange(exchange, specs, max(2, workers.world_size))
        seconds = [collective.work_seconds for collective in bucket.collectives]
        stages[name] = [1e9 * s / specs[0].size for s in (*seconds, bucket.work_seconds)]
    return stages


def _text(exchanges, links, values, world_size):
    who = f"One of {world_size} workers" if links else f"Alone, as one of {world_size} workers"
    lines = [f"{who}, {values:,} values, ns per value", ""]
    for name, stages in exchanges.items():
        parts = " + ".join(f"{stage:.2f}" for stage in stages)
        lines.append(
            f"  {name:24}{sum(stages):6.2f}  ({parts}: before each collective, at the end)"
        )
    if not links:
        return "\n".join([*lines, "", "No other workers: collectives are not measured."])
    lines += ["", "Collectives", ""]
    for kind, link in links.items():
        lines.append(
            f"  {kind:24}{8e-6 * link.bytes_per_second:8.0f} Mbit/s, shortest "
            f"{1e3 * link.latency_seconds:.2f} ms, work {1e3 * link.work_seconds:.2f} ms and "
            f"{1e9 * link.work_seconds_per_byte:.2f} ns per byte"
        )
    return "\n".join(lines)


def _number_of_values(text):
    if not text.isdecimal() or int(text) < _ROW_SIZE:
        raise argparse.ArgumentTypeError(
            f"It must be a number of values, at least {_ROW_SIZE}: {text!r}"
        )
    return int(text)
