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
    "raw": "the gradient, in one process or exchanged in full precision",
    "local": "each worker's gradient, before it is quantized",
    "aggregate": "their sum, between the two quantizations",
    "after-momentum": "the smoothed gradient",
}
# The papers use 2 h of speech, 703 of their minibatches of 1024 frames. This is as many of 256.
ADAGRAD_TIME_CONSTANT = 180_000
PRETRAINING_PART = 0.25
PRESETS = {
    "default": {},
    # In recipe.py the first phase is the first of six blocks of an epoch.
    "strom": {"exchange": "threshold", "warm_start": 0, "blocks_per_epoch": 6},
    # 24 h are a thirteenth of 309 h of speech.
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
    if not (options.delayed and options.auto_minibatch):  # the preset's value needs both
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
    add("--warm-start", type=int, default=300, help="first steps, in full precision")
    add("--warm-start-samples", type=int, help="length of the warm start in frames of all workers")
    _add_switch(
        group, "--delayed", help="exchange half a minibatch during the computation of the next half"
    )
    add("--max-column-size", type=int, help="onebit: most values that share two levels")
    add("--tau", type=float, help="threshold: smallest absolute value to send")
    add("--target-density", type=float, help="threshold: fraction of values to send, as 0.001")
    add(
        "--coding",
        choices=("packed", "golomb_rice"),
        default="packed",
        help="threshold: code of a value",
    )
    add("--asynchronous", action="store_true", help="threshold: workers do not wait for each other")
    add("--max-staleness", type=int, help="asynchronous: steps ahead of the slowest worker")
    add(
        "--shares",
        type=int,
        nargs="+",
        help="asynchronous: share of the data of each worker, in proportion to its speed",
    )
    add("--bmuf", action="store_true", help="train in blocks, and exchange their changes")
    add("--sync-period", type=int, default=16, help="bmuf: steps in a block")
    add(
        "--block-momentum",
        type=float,
        help="bmuf: such as 0.5 (default: 1 - 1 / number of workers)",
    )


def _add_updates(parser):
    group = parser.add_argument_group("updates from gradients")
    add = group.add_argument
    add("--batch-size", type=int, default=128, help="frames per minibatch and worker")
    add("--learning-rate", type=float, default=0.4, help="highest learning rate, for --batch-size")
    add(
        "--schedule",
        choices=("cosine", "constant", "steps"),
        help="schedule of the learning rate (default: cosine; constant with --auto-...)",
    )
    add("--momentum", type=float, default=0.0)
    places = "; ".join(f"{place}: {what}" for place, what in ADAGRAD.items())
    add("--adagrad", choices=ADAGRAD, help=f"what normalized AdaGrad works on. {places}")
    add(
        "--adagrad-time-constant",
        type=float,
        default=ADAGRAD_TIME_CONSTANT,
        help="time constant of the average of squares, in frames",
    )
    add(
        "--pretrain",
        type=float,
        nargs="?",
        const=PRETRAINING_PART,
        help="pre-train layer by layer, each on this fraction of a pass over the data (0.25)",
    )


def _add_control(parser):
    group = parser.add_argument_group("choices during training")
    add = group.add_argument
    _add_switch(group, "--auto-minibatch", help="search for the largest harmless minibatch")
    add("--minibatch-interval", type=int, help="frames from one search to the next")
    add("--trial-frames", type=int, help="frames of each trial of a search")
    add(
        "--error-margin",
        type=float,
        default=0.01,
        help="relative loss that a larger minibatch may cost in a trial",
    )
    add(
        "--minibatch-criterion",
        choices=("loss", "accuracy"),
        default="loss",
        help="measure of a trial",
    )
    add("--max-minibatch", type=int, default=16384, help="most frames of a minibatch")
    _add_switch(group, "--tune-without-delay", help="search without delay")
    _add_switch(
        group, "--auto-learning-rate", help="reduce it by accuracy on other held-out voices"
    )
    add("--evaluation-interval", type=int, help="frames from one evaluation to the next")


def _add_network(parser):
    add = parser.add_argument_group("the network").add_argument
    add("--depth", type=int, default=5, help="hidden layers")
    add("--width", type=int, default=512, help="units of a hidden layer")
    add("--activation", choices=("relu", "sigmoid"), default="relu")
    add("--svd-rank", type=int, help="rank of matrices between hidden layers")
    add("--load-weights", type=pathlib.Path, help="weights to continue from")
    add(
        "--save-weights",
        type=pathlib.Path,
        help="file for the final weights, ending in .weights.h5",
    )


def _add_data(parser):
    add = parser.add_argument_group("the data").add_argument
    corpus = dataset.Settings()
    add("--hours", type=float, default=corpus.hours, help="hours of speech to train on")
    add(
        "--held-out-minutes",
        type=float,
        default=corpus.held_out_minutes,
        help="minutes of speech to report on, and as many to decide by",
    )
    add("--targets", type=int, default=corpus.target_count, help="most phone states to classify")
    add("--epochs", type=int, default=1)
    add("--first-block", type=int, default=0, help="first block, to continue earlier training")
    add("--blocks", type=int, help="number of blocks to train on (default: all that remain)")
    add("--blocks-per-epoch", type=int, default=8, help="evaluations in each pass over the data")
    add("--seed", type=int, default=1, help="seed of the weights and the order of frames")
    add("--corpus-seed", type=int, default=corpus.seed, help="seed of texts, voices and noises")


def flag_of_shares(shares):
    """Returns the arguments that give workers these shares, as a list."""
    return ["--shares", *shares] if shares else []


def corpus_settings(options):
    """Returns the `dataset.Settings` that the command line asks for."""
    return dataset.Settings(
        options.hours, options.held_out_minutes, options.targets, options.corpus_seed
    )
