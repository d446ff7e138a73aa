"""The options of a training job, shared by `train.py`, `compare.py` and `recipe.py`."""

import argparse
import pathlib

import conflicts
import dataset

EXCHANGES = {
    "full": "full precision",
    "onebit": "1-bit",
    "onebit-no-feedback": "1-bit, no error feedback",
    "threshold": "threshold",
}
ADAGRAD = {
    "raw": "the gradient, not parallel or exchanged in full precision",
    "local": "each worker's gradient, before it is quantised",
    "aggregate": "their sum, between the two quantisations",
    "after-momentum": "the smoothed gradient",
}
# 2 h of speech in the papers, 703 of their minibatches of 1024 frames: as many of 256.
ADAGRAD_TIME_CONSTANT = 180_000
PRETRAINING_PART = 0.25
PRESETS = {
    "default": {},
    # Of a phase of recipe.py: the first of six blocks is the start of the first epoch.
    "strom": {"exchange": "threshold", "warm_start": 0, "blocks_per_epoch": 6},
    # Of 309 h of speech 24 are a thirteenth.
    "seide": {
        "exchange": "onebit",
        "warm_start": 0,
        "blocks_per_epoch": 13,
        "adagrad": "aggregate",
        "momentum": 0.9,
        "learning_rate": 0.04,
        "delayed": True,
        "auto_minibatch": True,
        "minibatch_criterion": "accuracy",
        "tune_without_delay": True,
        "auto_learning_rate": True,
    },
    "parallelizability": {
        "exchange": "full",
        "blocks_per_epoch": 13,
        "adagrad": "raw",
        "momentum": 0.9,
        "learning_rate": 0.04,
    },
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
    add("--output", type=pathlib.Path, help="JSON file for curves and final figures")
    for add_group in (_add_exchange, _add_updates, _add_control, _add_network, _add_data):
        add_group(parser)
    preset = parser.parse_known_args(arguments)[0].preset
    parser.set_defaults(**PRESETS[preset])
    options = parser.parse_args(arguments)
    if not (options.delayed and options.auto_minibatch):  # what a preset makes of both
        parser.set_defaults(tune_without_delay=False)
        options = parser.parse_args(arguments)
    problem = conflicts.found_in(options)
    if problem:
        parser.error(problem)
    if options.schedule is None:
        options.schedule = "constant" if conflicts.is_automatic(options) else "cosine"
    return options


def _add_switch(group, name, **settings):
    group.add_argument(name, action=argparse.BooleanOptionalAction, default=False, **settings)


def _add_exchange(parser):
    group = parser.add_argument_group("what workers send")
    add = group.add_argument
    add("--exchange", choices=EXCHANGES, default="onebit")
    add("--warm-start", type=int, default=300, help="steps in full precision at first")
    add("--warm-start-samples", type=int, help="the same, in frames of all workers")
    _add_switch(
        group, "--delayed", help="exchange half a minibatch while the next half is computed"
    )
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


def _add_updates(parser):
    group = parser.add_argument_group("what becomes of gradients")
    add = group.add_argument
    add("--batch-size", type=int, default=128, help="frames per minibatch and worker")
    add("--learning-rate", type=float, default=0.4, help="the highest, for --batch-size")
    add(
        "--schedule",
        choices=("cosine", "constant", "steps"),
        help="of the learning rate; default: cosine, with --auto-... constant",
    )
    add("--momentum", type=float, default=0.0)
    places = "; ".join(f"{place}: {what}" for place, what in ADAGRAD.items())
    add("--adagrad", choices=ADAGRAD, help=f"normalised AdaGrad of {places}")
    add(
        "--adagrad-time-constant",
        type=float,
        default=ADAGRAD_TIME_CONSTANT,
        help="frames over which squares are averaged",
    )
    add(
        "--pretrain",
        type=float,
        nargs="?",
        const=PRETRAINING_PART,
        help="train layer by layer at first, each with this part of a pass over the data, 0.25",
    )


def _add_control(parser):
    group = parser.add_argument_group("what is chosen during training")
    add = group.add_argument
    _add_switch(group, "--auto-minibatch", help="look for larger minibatches")
    add("--minibatch-interval", type=int, help="frames from one search to the next")
    add("--trial-frames", type=int, help="of each trial of a search")
    add(
        "--error-margin",
        type=float,
        default=0.01,
        help="what a larger minibatch may cost in a trial, relatively",
    )
    add("--minibatch-criterion", choices=("loss", "accuracy"), default="loss", help="of trials")
    add("--max-minibatch", type=int, default=16384, help="frames of all workers together, at most")
    _add_switch(group, "--tune-without-delay", help="not delayed while searching")
    _add_switch(group, "--auto-learning-rate", help="by voices not reported on")
    add("--evaluation-interval", type=int, help="frames from one evaluation to the next")


def _add_network(parser):
    add = parser.add_argument_group("the network").add_argument
    add("--depth", type=int, default=5, help="hidden layers")
    add("--width", type=int, default=512, help="units of a hidden layer")
    add("--activation", choices=("relu", "sigmoid"), default="relu")
    add("--svd-rank", type=int, help="of matrices between hidden layers, as products of two")
    add("--load-weights", type=pathlib.Path, help="to go on from")
    add("--save-weights", type=pathlib.Path, help="at the end, ending in .weights.h5")


def _add_data(parser):
    add = parser.add_argument_group("the data").add_argument
    corpus = dataset.Settings()
    add("--hours", type=float, default=corpus.hours, help="speech to train on")
    add(
        "--held-out-minutes",
        type=float,
        default=corpus.held_out_minutes,
        help="speech to report on, and as much to decide by",
    )
    add("--targets", type=int, default=corpus.target_count, help="most phone states to tell apart")
    add("--epochs", type=int, default=1)
    add("--first-block", type=int, default=0, help="of all epochs, to go on from earlier training")
    add("--blocks", type=int, help="to train on; default: all that are left")
    add("--blocks-per-epoch", type=int, default=8, help="evaluations in each pass over the data")
    add("--seed", type=int, default=1, help="of the weights and the order of frames")
    add("--corpus-seed", type=int, default=corpus.seed, help="of texts, voices and noises")


def flag_of_shares(shares):
    """The arguments that give workers these shares: a list of text, or nothing."""
    return ["--shares", *shares] if shares else []


def corpus_settings(options):
    """Returns the `dataset.Settings` that the command line asks for."""
    return dataset.Settings(
        options.hours, options.held_out_minutes, options.targets, options.corpus_seed
    )
