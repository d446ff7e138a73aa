"""Accuracy of the recipes of Seide et al. (2014) on the speech task.

These are tables 2 and 3 of the one paper, and table 2 of the other.

Each training is a job of `examples/speech/train.py`. Results are written as they come, and the same
command continues from them. After a change of the trainings, name another `--output`. Further
options are passed on to `train.py`.
"""

import argparse
import json
import os
import pathlib
import time

import seide_tables
from report import machine_facts, print_machine_facts, write_json
from speech_jobs import Row, train


def parse(arguments):
    """Returns the options of this program, and the remaining ones, for `train.py`."""
    parser = argparse.ArgumentParser("convergence.py tables", description=__doc__)
    add = parser.add_argument
    add("--tables", nargs="+", choices=seide_tables.TABLES, default=list(seide_tables.TABLES))
    add("--seeds", type=int, nargs="+", default=[1, 2, 3])
    add("--workers", type=int, default=2)
    add("--hours", type=float, default=1.0, help="speech in a pass over the data")
    add("--passes", type=int, default=2, help="of 000 table 2")
    add("--adagrad-passes", type=int, default=3, help="of 000 table 3 with fixed minibatches")
    add("--growing-passes", type=int, default=7, help="of rows with something automatic")
    add("--minibatch-interval", type=int, default=100_000, help="frames between searches")
    add("--evaluation-interval", type=int, default=180_000, help="frames between evaluations")
    add("--trial-frames", type=int, default=36_864, help="of each trial of a minibatch size")
    add("--error-margin", type=float, default=0.01, help="of a trial, relative")
    add("--depth", type=int, default=5, help="hidden layers")
    add("--width", type=int, default=256, help="units of a hidden layer")
    add("--svd-rank", type=int, default=64)
    add("--output", default="results/convergence_tables.json")
    return parser.parse_known_args(arguments)


class Runner:
    """A store of results that trains missing rows, and writes each result at once.

    Args:
        path: path of the results.
        seeds: list of int.
        workers: int.
        common: tuple of arguments of `train.py` for all rows.
    """

    def __init__(self, path, seeds, workers, common):
        self._path, self._seeds = pathlib.Path(path), seeds
        self._workers, self._common = workers, common
        self._trainings = {}
        if self._path.exists():
            for training in json.loads(self._path.read_text())["trainings"]:
                key = (tuple(training["arguments"]), training["workers"], training["seed"])
                self._trainings[key] = training["result"]

    def results(self, arguments):
        """Returns the results of `train.py` for each of the seeds: list."""
        return [self._trainings[self._key(arguments, seed)] for seed in self._seeds]

    def train(self, rows):
        """Trains rows, seed after seed.

        Args:
            rows: list of pairs of a name and arguments.
        """
        wanted = [(seed, name, arguments) for seed in self._seeds for name, arguments in rows]
        new = [w for w in wanted if self._key(w[2], w[0]) not in self._trainings]
        print(f"  {len(wanted) - len(new)} of {len(wanted)} trainings are there", flush=True)
        for count, (seed, name, arguments) in enumerate(new, start=1):
            started = time.monotonic()
            arguments_of_all = (*self._common, *arguments)
            result = train(Row(name, arguments_of_all), seed, self._workers, ())
            self._trainings[self._key(arguments, seed)] = result
            self._write()
            print(
                f"  {count} of {len(new)}, seed {seed}, {name}: "
                f"{result['held_out_accuracy'][-1]:.2%}, {time.monotonic() - started:.0f} s",
                flush=True,
            )

    @property
    def listed(self):
        """All trainings in their written form: list of dictionaries."""
        return [
            {"arguments": arguments, "workers": workers, "seed": seed, "result": result}
            for (arguments, workers, seed), result in self._trainings.items()
        ]

    def _key(self, arguments, seed):
        return (*self._common, *arguments), self._workers, seed

    def _write(self):
        self._path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps({"trainings": self.listed}) + "\n")
        os.replace(unfinished, self._path)


def main(arguments):
    options, training = parse(arguments)
    facts = machine_facts()
    print_machine_facts(facts)
    scale = seide_tables.Scale(
        options.hours,
        {
            "plain": options.passes,
            "adagrad": options.adagrad_passes,
            "growing": options.growing_passes,
        },
        options.minibatch_interval,
        options.evaluation_interval,
        options.trial_frames,
        options.error_margin,
        options.svd_rank,
    )
    common = ("--depth", str(options.depth), "--width", str(options.width), *training)
    runner = Runner(options.output, options.seeds, options.workers, common)
    tables = [seide_tables.TABLES[name](scale) for name in options.tables]
    verdicts = []
    for table in tables:
        print(f"\n{table.title}", flush=True)
        runner.train([(name, row.arguments) for name, row in table.rows.items()])
        results = {row.arguments: runner.results(row.arguments) for row in table.rows.values()}
        verdicts += table.report(results, options.seeds)
    content = {"machine": facts, "arguments": vars(options), "training": training}
    write_json(options.output, content | {"verdicts": verdicts, "trainings": runner.listed})
