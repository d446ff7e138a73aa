"""The options of a training job, shared by `train.py` and `compare.py`."""

import argparse
import pathlib

import dataset

EXCHANGES = {
    "full": "full precision",
    "onebit": "1-bit",
    "onebit-no-feedback": "1-bit, no error feedback",
    "threshold": "threshold",
}
PRESETS = {
    "default": {},
    # Of a phase of recipe.py: the first of six blocks is the start of the first epoch.
    "strom": {"exchange": "threshold", "warm_start": 0, "blocks_per_epoch": 6},
    "paper-small": {"hours": 4.0, "depth": 7, "blocks_per_epoch": 4},
    "tiny": {
        "hours": 0.1,
        "depth": 2,
        "width": 128,
        "batch_size": 64,
        "blocks_per_epoch": 2,
        "warm_start": 50,
    },
}


def parse_arguments(arguments=None, description=None):
    """Parses a worker's command line."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--preset", choices=PRESETS, default="default", help="defaults of the other options")
    add("--exchange", choices=EXCHANGES, default="onebit")
    add("--warm-start", type=int, default=300, help="steps in full precision at first")
    add("--max-column-size", type=int, help="onebit: values that share two levels")
    add("--tau", type=float, help="threshold: what values must exceed to be sent")
    add("--target-density", type=float, help="threshold: part of all values to send, 0.001")
    add(
        "--coding",
        choices=("packed", "golomb_rice"),
        default="packed",
        help="threshold: of a value",
    )
    add("--asynchronous", action="store_true", help="threshold: workers do not wait for each other")
    add("--max-staleness", type=int, help="asynchronous: steps ahead of the slowest worker")
    add(
        "--shares",
        type=int,
        nargs="+",
        help="asynchronous: parts of the data of each worker, as fast as it is",
    )
    add("--bmuf", action="store_true", help="train in blocks; what they change is exchanged")
    add("--sync-period", type=int, default=16, help="bmuf: steps in a block")
    add("--block-momentum", type=float, help="bmuf: 0.5; default: 1 - 1 / (number of workers)")
    corpus = dataset.Settings()
    add("--hours", type=float, default=corpus.hours, help="speech to train on")
    add("--held-out-minutes", type=float, default=corpus.held_out_minutes)
    add("--targets", type=int, default=corpus.target_count, help="most phone states to tell apart")
    add("--epochs", type=int, default=1)
    add("--first-block", type=int, default=0, help="of all epochs, to go on from earlier training")
    add("--blocks", type=int, help="to train on; default: all that are left")
    add("--load-weights", type=pathlib.Path, help="to go on from")
    add("--save-weights", type=pathlib.Path, help="at the end, ending in .weights.h5")
    add("--blocks-per-epoch", type=int, default=8, help="evaluations in each pass over the data")
    add("--batch-size", type=int, default=128, help="frames per step and worker")
    add("--learning-rate", type=float, default=0.4, help="the highest, after warm-up")
    add("--schedule", choices=("cosine", "constant"), default="cosine", help="of the learning rate")
    add("--momentum", type=float, default=0.0)
    add("--depth", type=int, default=5, help="hidden layers")
    add("--width", type=int, default=512, help="units of a hidden layer")
    add("--activation", choices=("relu", "sigmoid"), default="relu")
    add("--seed", type=int, default=1, help="of the weights and the order of frames")
    add("--corpus-seed", type=int, default=corpus.seed, help="of texts, voices and noises")
    add("--output", type=pathlib.Path, help="JSON file for curves and final figures")
    preset = parser.parse_known_args(arguments)[0].preset
    parser.set_defaults(**PRESETS[preset])
    options = parser.parse_args(arguments)
    if options.asynchronous and options.exchange != "threshold":
        parser.error(f"--asynchronous needs --exchange threshold. Received: {options.exchange}.")
    if options.bmuf and options.asynchronous:
        parser.error("--bmuf and --asynchronous exclude each other.")
    if options.shares and not options.asynchronous:
        parser.error(f"--shares needs --asynchronous. Received: {options.shares}.")
    if options.shares and min(options.shares) < 1:
        parser.error(f"--shares must be positive. Received: {options.shares}.")
    return options


def flag_of_shares(shares):
    """The arguments that give workers these shares: a list of text, or nothing."""
    return ["--shares", *shares] if shares else []


def corpus_settings(options):
    """Returns the `dataset.Settings` that the command line asks for."""
    return dataset.Settings(
        options.hours, options.held_out_minutes, options.targets, options.corpus_seed
    )
