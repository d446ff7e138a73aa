"""Tables of Seide et al. 2014 in small: trainings, printed tables, and claims.

`000` is the Interspeech paper (1-bit SGD), `002` the ICASSP paper (parallelizability).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from intervals import CONFIDENCE, TOLERANCE_POINTS, interval
from report import print_table, verdict
from speech_jobs import accuracies

FRAMES_PER_HOUR = 360_000
COLD_START = 24 / 309  # of the first pass over the data
# Each kind of units needs learning rates of its own. With momentum each frame counts 1 / (1 - 0.9)
# times.
SIGMOID, RELU = ("--activation", "sigmoid", "--pretrain"), ("--activation", "relu")
PLAIN, SMOOTHED = ("--momentum", "0"), ("--momentum", "0.9")
RATES = {
    (SIGMOID, PLAIN): "2",
    (SIGMOID, SMOOTHED): "0.2",
    (RELU, PLAIN): "0.4",
}
FULL, ONE_BIT = ("--exchange", "full"), ("--exchange", "onebit")
NO_FEEDBACK = ("--exchange", "onebit-no-feedback")
LESS_OFTEN = 3
GROWTH = 4  # the least growth that counts, of the minibatch
LARGER = 1.01  # the least that counts as larger, relative to trials without delay
# The effect of a size on a model may show after tens of updates only.
MINIBATCHES_OF_TRIAL = 30  # at least
HEADER = ["", "frame accuracy [%]", "points lost", "on training data [%]", "frames per minibatch"]


class Scale(NamedTuple):
    """The size of the reproduction.

    Attributes:
        hours: float. Speech in a pass over the data.
        passes: dict of int by kind of rows. `"plain"` is 000 table 2, `"adagrad"` fixed
            minibatches in 000 table 3, `"growing"` all rows with something automatic.
        minibatch_interval, evaluation_interval: int, frames.
        trial_frames: int. Frames of each trial of a minibatch size, in all rows.
        error_margin: float. Relative loss that a larger minibatch may have in a trial.
        svd_rank: int.
    """

    hours: float
    passes: dict
    minibatch_interval: int
    evaluation_interval: int
    trial_frames: int
    error_margin: float
    svd_rank: int

    @property
    def warm_start(self):
        return ("--warm-start-samples", str(round(COLD_START * self.hours * FRAMES_PER_HOUR)))


class Row(NamedTuple):
    """A training, and the name of the row that it is compared with."""

    arguments: tuple
    reference: str | None


class Table(NamedTuple):
    """Rows to compare.

    Attributes:
        title: str.
        rows: dictionary of `Row`, by name.
        judge: function of `Outcomes`, which prints and returns verdicts.
        text: further notes for the reader.
    """

    title: str
    rows: dict
    judge: Callable
    text: str = ""

    def report(self, results, seeds):
        """Prints the table, and prints and returns the verdicts on its claims.

        Args:
            results: list of results of `train.py` for each seed, by arguments of the row.
            seeds: list of int.
        """
        outcomes = Outcomes({name: results[row.arguments] for name, row in self.rows.items()})
        cells = [[name, *outcomes.cells(name, row.reference)] for name, row in self.rows.items()]
        print_table(f"{self.title}; seeds {seeds}, {CONFIDENCE:.0%}", HEADER, cells)
        print(f"\n{self.text}")
        return self.judge(outcomes)


class Outcomes:
    """The results of a table's rows.

    Args:
        results: list of results of `train.py` for each seed, by name of the row.
    """

    def __init__(self, results):
        self._results = results

    def figures(self, name, figure):
        """Returns a figure of a row for each of the seeds: array."""
        return np.array(self.lists(name, figure))

    def lists(self, name, figure):
        """Returns lists of a row for each of the seeds, shorter where training diverged."""
        return [result[figure] for result in self._results[name]]

    def cells(self, name, reference):
        mean, half = interval(accuracies(self._results[name]))
        on_training = 100 * np.mean([r["training_accuracy"][-1] for r in self._results[name]])
        lost = "{:+.2f} +- {:.2f}".format(*self.lost(name, reference)) if reference else ""
        minibatch = np.mean(self.figures(name, "mean_minibatch"))
        return [f"{mean:.2f} +- {half:.2f}", lost, f"{on_training:.2f}", f"{minibatch:,.0f}"]

    def lost_by_seed(self, name, reference):
        """Returns the points of accuracy lost at the end, for each of the seeds: array."""
        return accuracies(self._results[reference]) - accuracies(self._results[name])

    def lost(self, name, reference):
        """Returns the points lost at the end: mean, and half its confidence interval."""
        return interval(self.lost_by_seed(name, reference))

    def gained_after(self, passes, name, reference):
        """Returns the points of accuracy gained after some passes: mean, and half the interval."""
        ours, theirs = (
            np.array([100 * result["held_out_accuracy"][passes - 1] for result in self._results[n]])
            for n in (name, reference)
        )
        return interval(ours - theirs)

    def costs_little(self, name, reference):
        """Returns verdicts on the claim that a row loses hardly anything."""
        mean, half = self.lost(name, reference)
        claim = f"{name}: points lost against {reference}"
        return [
            verdict(claim, mean, TOLERANCE_POINTS),
            verdict(f"{claim}, upper end of the interval", mean + half, TOLERANCE_POINTS),
        ]

    def grows(self, name, reference):
        """Returns the verdict on the claim that the minibatch grows with each of the seeds."""
        growth = self.figures(name, "largest_minibatch")
        growth = growth / self.figures(reference, "largest_minibatch")
        claim = f"{name}: the largest minibatch over the fixed one, least of all seeds"
        return verdict(claim, float(np.min(growth)), GROWTH, at_most=False)

    def is_better(self, name, reference):
        """Returns the verdict on the claim that a row ends with more accuracy."""
        lost, half = self.lost(name, reference)
        claim = f"{name}: points better than {reference}, lower end of the interval"
        return verdict(claim, -lost - half, 0, at_most=False)


def _arguments(scale, kind, units, momentum, *more):
    """Returns arguments of `train.py`, with one evaluation after each pass over the data."""
    return (
        *("--hours", f"{scale.hours:g}", "--epochs", str(scale.passes[kind])),
        *("--blocks-per-epoch", "1", "--learning-rate", RATES[units, momentum]),
        *(*units, *momentum, *more),
    )


def quantisation(scale):
    """Returns 000, table 2: 1-bit gradients, double buffering and error feedback."""
    rows = {}
    for setup, units, low_rank in (
        ("sigmoid", SIGMOID, ()),
        ("ReLU", RELU, ()),
        ("SVD", SIGMOID, ("--svd-rank", str(scale.svd_rank))),
    ):
        full = f"{setup}: full precision"
        for way, more in (
            ("full precision", FULL),
            ("1-bit", (*ONE_BIT, *scale.warm_start)),
            ("1-bit, double buffering", (*ONE_BIT, *scale.warm_start, "--delayed")),
            ("1-bit, no error feedback", (*NO_FEEDBACK, *scale.warm_start)),
        ):
            arguments = _arguments(scale, "plain", units, PLAIN, *low_rank, *more)
            rows[f"{setup}: {way}"] = Row(arguments, None if way == "full precision" else full)
    title = f"000 table 2: 1-bit gradients, {scale.passes['plain']} passes"
    return Table(title, rows, _judge_quantisation)


def _judge_quantisation(outcomes):
    verdicts = []
    for setup in ("sigmoid", "ReLU", "SVD"):
        full = f"{setup}: full precision"
        verdicts += outcomes.costs_little(f"{setup}: 1-bit", full)
        verdicts += outcomes.costs_little(f"{setup}: 1-bit, double buffering", full)
        without = f"{setup}: 1-bit, no error feedback"
        claim = f"{without}: points lost against {full}, least of all seeds"
        least = float(np.min(outcomes.lost_by_seed(without, full)))
        verdicts.append(verdict(claim, least, TOLERANCE_POINTS, at_most=False))
    return verdicts


_AFTER_MOMENTUM = "AdaGrad of the momentum-smoothed gradient"
_RAW = "AdaGrad of the raw gradient"
_LOCAL = "1-bit, AdaGrad of partial gradients"
_AGGREGATE = "1-bit, AdaGrad of the aggregate"


def placements(scale):
    """Returns 000, table 3, first part: the place of AdaGrad."""
    rows = {}
    for name, exchange, place, reference in (
        (_AFTER_MOMENTUM, FULL, "after-momentum", _RAW),
        (_RAW, FULL, "raw", None),
        (_LOCAL, (*ONE_BIT, *scale.warm_start), "local", _RAW),
        (_AGGREGATE, (*ONE_BIT, *scale.warm_start), "aggregate", _RAW),
    ):
        arguments = _arguments(scale, "adagrad", SIGMOID, SMOOTHED, *exchange, "--adagrad", place)
        rows[name] = Row(arguments, reference)
    title = f"000 table 3: where to apply AdaGrad, {scale.passes['adagrad']} passes"
    return Table(title, rows, _judge_placements)


def _judge_placements(outcomes):
    return [
        outcomes.is_better(_RAW, _AFTER_MOMENTUM),
        outcomes.is_better(_AGGREGATE, _LOCAL),
        outcomes.is_better(_AGGREGATE, _RAW),
    ]


_FIXED = "fixed minibatch"
_TUNED = "minibatch tuned"
_TUNED_LESS = f"minibatch tuned {LESS_OFTEN} x less often"
_DELAYED = f"{_TUNED_LESS}, double buffering"
_NO_DELAY_IN_SEARCH = f"{_DELAYED}, not while tuning"


def growing(scale):
    """Returns 000, table 3, second part: tuning of the minibatch, and double buffering."""
    tuning, less_often = (
        (*_tuning(scale, times), "--minibatch-criterion", "accuracy") for times in (1, LESS_OFTEN)
    )
    delayed = (*less_often, "--delayed")
    rows = {}
    for name, more, reference in (
        (_FIXED, (), None),
        (_TUNED, tuning, _FIXED),
        (_TUNED_LESS, less_often, _TUNED),
        (_DELAYED, delayed, _TUNED_LESS),
        (_NO_DELAY_IN_SEARCH, (*delayed, "--tune-without-delay"), _TUNED_LESS),
    ):
        arguments = _arguments(
            scale,
            *("growing", SIGMOID, SMOOTHED, *ONE_BIT, *scale.warm_start),
            *("--adagrad", "aggregate", *_evaluating(scale), *more),
        )
        rows[name] = Row(arguments, reference)
    title = (
        "000 table 3: 1-bit, AdaGrad of the aggregate, automatic learning rate, "
        f"{scale.passes['growing']} passes"
    )
    return Table(title, rows, _judge_growing, _text_on_trials(scale, "training-set frame accuracy"))


def _tuning(scale, times=1):
    # Trials have the same length in all rows, so that rows have the same limits and chances. The
    # largest minibatch is also the same with and without delay in the trials.
    return (
        *("--auto-minibatch", "--minibatch-interval", str(times * scale.minibatch_interval)),
        *("--trial-frames", str(scale.trial_frames), "--error-margin", f"{scale.error_margin:g}"),
        *("--max-minibatch", str(scale.trial_frames // MINIBATCHES_OF_TRIAL)),
    )


def _text_on_trials(scale, criterion):
    return (
        f"  Searches every {scale.minibatch_interval:,} frames, unless the row says how much less "
        "often, for minibatches\n  of up to "
        f"{scale.trial_frames // MINIBATCHES_OF_TRIAL:,}, by the {criterion} in trials of "
        f"{scale.trial_frames:,} frames.\n  A size may cost {scale.error_margin:.1%} of it.\n"
    )


def _evaluating(scale):
    return ("--auto-learning-rate", "--evaluation-interval", str(scale.evaluation_interval))


def _judge_growing(outcomes):
    verdicts = outcomes.costs_little(_TUNED, _FIXED)
    verdicts += outcomes.costs_little(_TUNED_LESS, _TUNED)
    verdicts += outcomes.costs_little(_DELAYED, _TUNED_LESS)
    verdicts += outcomes.costs_little(_NO_DELAY_IN_SEARCH, _TUNED_LESS)
    for name in (_TUNED, _TUNED_LESS, _DELAYED, _NO_DELAY_IN_SEARCH):
        verdicts.append(outcomes.grows(name, _FIXED))
    delayed, not_delayed = (
        outcomes.figures(name, "mean_minibatch") for name in (_DELAYED, _NO_DELAY_IN_SEARCH)
    )
    ratio, half = interval(not_delayed / delayed)
    claim = "frames per minibatch where tuning is not delayed, over those where it is"
    verdicts.append(verdict(claim, ratio, LARGER, at_most=False))
    claim = f"{claim}, lower end of the interval"
    verdicts.append(verdict(claim, ratio - half, LARGER, at_most=False))
    for name in (_TUNED, _TUNED_LESS):
        searched = np.mean(outcomes.figures(name, "search_frames") / _frames(outcomes, name))
        print(f"  {name}: searches process {searched:.1%} as many frames as training")
    return verdicts


def _frames(outcomes, name):
    return np.array([frames[-1] for frames in outcomes.lists(name, "frames")])


_PROFILE = "fixed profile"
_ADAGRAD = "+ AdaGrad"
_AUTOMATIC_RATE = "+ automatic learning rate"
_AUTOMATIC_SIZE = "+ automatic minibatch"


def automatic(scale):
    """Returns 002, table 2: AdaGrad, automatic learning rate and minibatch, in full precision."""
    rows = {}
    adagrad, reference = ("--adagrad", "raw"), None
    for name, more in (
        (_PROFILE, ("--schedule", "steps")),
        (_ADAGRAD, (*adagrad, "--schedule", "steps")),
        (_AUTOMATIC_RATE, (*adagrad, *_evaluating(scale))),
        (
            _AUTOMATIC_SIZE,
            (*adagrad, *_evaluating(scale), *_tuning(scale), "--minibatch-criterion", "loss"),
        ),
    ):
        arguments = _arguments(scale, "growing", SIGMOID, SMOOTHED, *FULL, *more)
        rows[name] = Row(arguments, reference)
        reference = name
    title = f"002 table 2: full precision, {scale.passes['growing']} passes"
    return Table(title, rows, _judge_automatic, _text_on_trials(scale, "objective function"))


def _judge_automatic(outcomes):
    gained, half = outcomes.gained_after(1, _ADAGRAD, _PROFILE)
    claim = f"{_ADAGRAD}: points better than {_PROFILE} after one pass, lower end of the interval"
    verdicts = [verdict(claim, gained - half, 0, at_most=False)]
    verdicts.append(outcomes.is_better(_AUTOMATIC_RATE, _ADAGRAD))
    verdicts += outcomes.costs_little(_AUTOMATIC_SIZE, _AUTOMATIC_RATE)
    verdicts.append(outcomes.grows(_AUTOMATIC_SIZE, _AUTOMATIC_RATE))
    return verdicts


TABLES = {
    "000-2": quantisation,
    "000-3": placements,
    "000-3-growing": growing,
    "002-2": automatic,
}
