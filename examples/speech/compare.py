"""Trains the same speech model twice, in full precision and with compressed gradients.

    python examples/speech/compare.py                  # what `make train` runs
    python examples/speech/compare.py --preset paper-small --workers 2
    python examples/speech/compare.py --exchange threshold --target-density 0.001

Further options are passed on to train.py, for both trainings.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import time

import matplotlib

matplotlib.use("Agg")
import dataset
import matplotlib.pyplot as plt
import options as training_options

COMPRESSED = {k: name for k, name in training_options.EXCHANGES.items() if k != "full"}

# Matches what TensorFlow prints at each start, in every worker and in horovodrun's own checks.
_TENSORFLOW_GREETING = re.compile("log messages before absl::|oneDNN custom operations are on")


def train(workers, arguments, output):
    """Runs one training job in `workers` processes of this machine, and returns its results.

    Args:
        workers: int.
        arguments: list of arguments of train.py.
        output: path of the results.
    """
    command = [
        str(pathlib.Path(sys.executable).with_name("horovodrun")),
        *("-np", str(workers)),
        *(sys.executable, str(pathlib.Path(__file__).with_name("train.py"))),
        *arguments,
        *("--output", str(output)),
    ]
    output.unlink(missing_ok=True)
    environment = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as job:
        for line in job.stdout:
            if not _TENSORFLOW_GREETING.search(line):
                print(line.removeprefix("[0]<stdout>:"), end="", flush=True)
    if job.returncode != 0 or not output.exists():
        raise SystemExit(
            f"Training failed with exit status {job.returncode}; the "
            f"workers' own messages are above. To repeat it alone:\n  {' '.join(command)}"
        )
    return json.loads(output.read_text())


def table(results):
    """Returns the comparison as lines of text.

    Args:
        results: dict of name to the results of `train.train`: full precision, then another.
    """
    header = ("", "frame accuracy", "cross entropy", "bytes sent/step", "ms/step")
    rows = [
        (
            name,
            f"{result['held_out_accuracy'][-1]:.2%}",
            f"{result['held_out_cross_entropy'][-1]:.3f}",
            f"{result['bytes_sent_per_step']:,.0f}",
            f"{result['milliseconds_per_step']:.1f}",
        )
        for name, result in results.items()
    ]
    (_, full), (name, compressed) = results.items()
    difference = compressed["held_out_accuracy"][-1] - full["held_out_accuracy"][-1]
    rows.append(
        (
            f"{name} against full",
            f"{100 * difference:+.2f} points",
            f"{compressed['held_out_cross_entropy'][-1] - full['held_out_cross_entropy'][-1]:+.3f}",
            f"1/{full['bytes_sent_per_step'] / compressed['bytes_sent_per_step']:.1f}",
            f"x{compressed['milliseconds_per_step'] / full['milliseconds_per_step']:.2f}",
        )
    )
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in (header, *rows)
    ]
    lines.insert(1, "-" * len(lines[0]))
    return lines


def plot(results, path):
    """Draws held-out accuracy and training loss over the frames seen, as a PNG file."""
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for name, result in results.items():
        million_frames = [frames / 1e6 for frames in result["frames"]]
        accuracy = [100 * a for a in result["held_out_accuracy"]]
        style = {"label": name, "marker": "o", "markersize": 4}
        panels[0].plot(million_frames, accuracy, **style)
        panels[1].plot(million_frames, result["training_cross_entropy"], **style)
    panels[0].set_ylabel("held-out frame accuracy [%]")
    panels[1].set_ylabel("training cross entropy [nats]")
    warm_start_frames = list(results.values())[-1]["warm_start_frames"] / 1e6
    for panel in panels:
        panel.axvline(warm_start_frames, color="gray", linestyle=":", label="end of warm start")
        panel.set_xlabel("million training frames seen by all workers")
        panel.grid(alpha=0.3)
        panel.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--results", type=pathlib.Path, default=pathlib.Path("results/speech"))
    parser.add_argument("--exchange", choices=COMPRESSED, default="onebit")
    parser.add_argument("--asynchronous", action="store_true")
    parser.add_argument("--shares", nargs="+", help="with --asynchronous: see train.py")
    own, arguments = parser.parse_known_args()
    compressed = ["--exchange", own.exchange, *(["--asynchronous"] if own.asynchronous else [])]
    compressed += training_options.flag_of_shares(own.shares)
    name = f"{COMPRESSED[own.exchange]}{', asynchronous' if own.asynchronous else ''}"
    options = training_options.parse_arguments([*arguments, *compressed])
    full = ["--exchange", "full"]
    if options.adagrad in ("local", "aggregate"):  # these need a quantized exchange
        full += ["--adagrad", "raw"]
    exchanges = {"full precision": full, name: compressed}
    settings = training_options.corpus_settings(options)
    own.results.mkdir(parents=True, exist_ok=True)

    started = time.monotonic()
    dataset.load(settings)
    results = {}
    for name, exchange in exchanges.items():
        print(f"\nTraining with {own.workers} workers, {name}", flush=True)
        output = own.results / f"{exchange[1]}.json"
        results[name] = train(own.workers, [*arguments, *exchange], output)
    plot(results, own.results / "curves.png")
    print("", *table(results), sep="\n")
    print(
        f"\nper worker, {own.workers} workers; {time.monotonic() - started:.0f} s in total; "
        f"curves: {own.results / 'curves.png'}"
    )


if __name__ == "__main__":
    main()
