"""Trains a speech model by the recipe of a paper: a special start, then all workers.

    python examples/speech/recipe.py  # Strom (2015), table 1
    python examples/speech/recipe.py --workers 4 --epochs 4 --asynchronous --hours 4
    python examples/speech/recipe.py --preset seide  # Seide et al. (2014, Interspeech)
    python examples/speech/recipe.py --preset parallelizability  # Seide et al. (2014, ICASSP)

| strom               | first sixth of an epoch | rest of it | second epoch | third | ... |
|---------------------|-------------------------|------------|--------------|-------|-----|
| learning rate       | r                       | r          | r / 2        | r / 4 | ... |
| minibatch, a worker | B / 4                   | B / 2      | B            | B     | ... |
| workers             | N / 2                   | N / 2      | N            | N     | ... |

| seide               | first thirteenth of an epoch    | all that follows                      |
|---------------------|---------------------------------|---------------------------------------|
| workers             | 1                               | N                                     |
| exchange            | none                            | 1-bit, delayed by half a minibatch    |
| AdaGrad, momentum   | of the gradient                 | of the sum, between its quantizations |
| minibatch           | N B                             | N B at first, searched for later      |
| learning rate       | r                               | r at first, by held-out accuracy later |

| parallelizability   | first thirteenth of an epoch | all that follows |
|---------------------|------------------------------|------------------|
| minibatch, a worker | B / 4                        | B                |
| learning rate       | r / 4                        | r                |

Every phase is a job of its own, which continues from the weights of the phase before. Further
options are passed on to train.py.
"""

import argparse
import json
import pathlib
from typing import NamedTuple

import compare
import dataset
import options as training_options

# Options of one worker alone, which does not quantize, wait or search.
ALONE = ("--exchange", "full", "--adagrad", "raw", "--no-delayed")
AS_IT_IS = ("--no-auto-minibatch", "--no-tune-without-delay", "--no-auto-learning-rate")
LATER = ("minibatch-interval", "trial-frames", "evaluation-interval")


class Phase(NamedTuple):
    """A part of the training, with the same setting throughout.

    Attributes:
        first_block: int.
        blocks: int.
        learning_rate: float.
        batch_size: int. Frames per minibatch and worker.
        workers: int.
        flags: tuple of further arguments of train.py, which override all others.
    """

    first_block: int
    blocks: int
    learning_rate: float
    batch_size: int
    workers: int
    flags: tuple = ()


def strom(epochs, blocks_per_epoch, learning_rate, batch_size, workers):
    """Returns the phases of a training: list of `Phase`.

    Args:
        epochs: int.
        blocks_per_epoch: int.
        learning_rate: float. Learning rate of the first epoch.
        batch_size: int. Frames per minibatch and worker in the last phase.
        workers: int. Number of workers in the last phase.
    """
    few = max(1, workers // 2)
    first = [
        Phase(0, 1, learning_rate, batch_size // 4, few),
        Phase(1, blocks_per_epoch - 1, learning_rate, batch_size // 2, few),
    ]
    return first + [
        Phase(e * blocks_per_epoch, blocks_per_epoch, learning_rate / 2**e, batch_size, workers)
        for e in range(1, epochs)
    ]


def seide(epochs, blocks_per_epoch, learning_rate, batch_size, workers):
    """Starts with one worker without quantization. Arguments and result are as for `strom`."""
    left = epochs * blocks_per_epoch - 1
    return [
        Phase(0, 1, learning_rate, workers * batch_size, 1, ALONE + AS_IT_IS),
        Phase(1, left, learning_rate, batch_size, workers),
    ]


def parallelizability(epochs, blocks_per_epoch, learning_rate, batch_size, workers):
    """Starts with small minibatches, at the same learning rate per frame.

    Arguments are as for `strom`.
    """
    left = epochs * blocks_per_epoch - 1
    return [
        Phase(0, 1, learning_rate / 4, batch_size // 4, workers, AS_IT_IS),
        Phase(1, left, learning_rate, batch_size, workers),
    ]


RECIPES = {"strom": strom, "seide": seide, "parallelizability": parallelizability}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", choices=RECIPES, default="strom")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, help="learning rate r of the table")
    parser.add_argument("--batch-size", type=int, help="frames B per minibatch and worker")
    parser.add_argument(
        "--pretrain", nargs="?", const="", help="pre-train in the first phase (see train.py)"
    )
    later = parser.add_argument_group("phases after the first (see train.py)").add_argument
    for name in LATER:
        later(f"--{name}")
    parser.add_argument(
        "--shares", nargs="+", help="shares of the data with --asynchronous (see train.py)"
    )
    parser.add_argument("--results", type=pathlib.Path, default=pathlib.Path("results/recipe"))
    own, arguments = parser.parse_known_args()
    of_searches = [
        part
        for name in LATER
        if (value := getattr(own, name.replace("-", "_"))) is not None
        for part in (f"--{name}", value)
    ]
    shares = training_options.flag_of_shares(own.shares)
    options = training_options.parse_arguments(
        ["--preset", own.preset, *arguments, *of_searches, *shares]
    )
    if own.shares and len(own.shares) != own.workers:
        parser.error(
            f"--shares needs one for each of {own.workers} workers. Received: {own.shares}."
        )
    if options.blocks_per_epoch < 2:
        parser.error(
            "The first epoch has two phases, so --blocks-per-epoch must be 2 or more. "
            f"Received: {options.blocks_per_epoch}."
        )
    dataset.load(training_options.corpus_settings(options))
    phases = RECIPES[own.preset](
        own.epochs,
        options.blocks_per_epoch,
        own.learning_rate or options.learning_rate,
        own.batch_size or options.batch_size,
        own.workers,
    )
    weights = own.results / "model.weights.h5"
    results = []
    for phase in phases:
        print(f"\n{phase}", flush=True)
        if results:
            start = [*of_searches, "--load-weights", weights]
        else:
            start = [] if own.pretrain is None else ["--pretrain", own.pretrain]
        flags = _flags(own.preset, phase, weights)
        flags += training_options.flag_of_shares((own.shares or [])[: phase.workers])
        arguments_of_phase = [*flags, *arguments, *phase.flags, *start]
        output = own.results / f"phase_{len(results)}.json"
        results.append(
            compare.train(phase.workers, [str(a) for a in arguments_of_phase if a != ""], output)
        )
    accuracy = results[-1]["held_out_accuracy"][-1]
    (own.results / "recipe.json").write_text(json.dumps(results, indent=1))
    print(f"\nheld-out frame accuracy {accuracy:.2%}; weights: {weights}")


def _flags(preset, phase, weights):
    setting = {
        "preset": preset,
        "schedule": "constant",
        "first-block": phase.first_block,
        "blocks": phase.blocks,
        "learning-rate": phase.learning_rate,
        "batch-size": phase.batch_size,
        "save-weights": weights,
    }
    return [part for name, value in setting.items() for part in (f"--{name}", value)]


if __name__ == "__main__":
    main()
