"""Trains a speech model by the recipe of Strom (2015), table 1: small and few at first.

    python examples/speech/recipe.py
    python examples/speech/recipe.py --workers 4 --epochs 4 --asynchronous --hours 4

| phase               | first sixth of an epoch | rest of it | second epoch | third | ... |
|---------------------|-------------------------|------------|--------------|-------|-----|
| learning rate       | r                       | r          | r / 2        | r / 4 | ... |
| minibatch, a worker | B / 4                   | B / 2      | B            | B     | ... |
| workers             | N / 2                   | N / 2      | N            | N     | ... |

Every phase is a job of its own, which goes on from the weights of the one before. Further options
are those of train.py.
"""

import argparse
import json
import pathlib
from typing import NamedTuple

import compare
import dataset
import options as training_options

PRESET = "strom"


class Phase(NamedTuple):
    """A part of the training, with the same setting throughout."""

    first_block: int
    blocks: int
    learning_rate: float
    batch_size: int
    workers: int


def phases(epochs, blocks_per_epoch, learning_rate, batch_size, workers):
    """Returns the phases of a training: list of `Phase`.

    Args:
        epochs: int.
        blocks_per_epoch: int.
        learning_rate: float. In the first epoch.
        batch_size: int. Frames per step and worker, in the end.
        workers: int. In the end.
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


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, default=0.4)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--shares", nargs="+", help="with --asynchronous: see train.py")
    parser.add_argument("--results", type=pathlib.Path, default=pathlib.Path("results/recipe"))
    own, arguments = parser.parse_known_args()
    options = training_options.parse_arguments(
        ["--preset", PRESET, *arguments, *training_options.flag_of_shares(own.shares)]
    )
    if own.shares and len(own.shares) != own.workers:
        parser.error(
            f"--shares needs one for each of {own.workers} workers. Received: {own.shares}."
        )
    if options.blocks_per_epoch < 2:
        parser.error(
            "The first epoch has two phases, so that --blocks-per-epoch must be 2 or more. "
            f"Received: {options.blocks_per_epoch}."
        )
    dataset.load(training_options.corpus_settings(options))
    weights = own.results / "model.weights.h5"
    results = []
    for phase in phases(
        own.epochs, options.blocks_per_epoch, own.learning_rate, own.batch_size, own.workers
    ):
        print(f"\n{phase}", flush=True)
        setting = {
            "preset": PRESET,
            "schedule": "constant",
            "first-block": phase.first_block,
            "blocks": phase.blocks,
            "learning-rate": phase.learning_rate,
            "batch-size": phase.batch_size,
            "save-weights": weights,
            **({"load-weights": weights} if results else {}),
        }
        flags = [part for name, value in setting.items() for part in (f"--{name}", str(value))]
        output = own.results / f"phase_{len(results)}.json"
        flags += training_options.flag_of_shares((own.shares or [])[: phase.workers])
        results.append(compare.train(phase.workers, [*flags, *arguments], output))
    accuracy = results[-1]["held_out_accuracy"][-1]
    (own.results / "recipe.json").write_text(json.dumps(results, indent=1))
    print(f"\nheld-out frame accuracy {accuracy:.2%}; weights: {weights}")


if __name__ == "__main__":
    main()
