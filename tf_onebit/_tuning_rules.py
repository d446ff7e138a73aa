"""Decision rules for minibatch size and learning rate, without Keras or TensorFlow.

Minibatch size (Seide et al. 2014, Interspeech, section 4; ICASSP, section 4): at any time there is
a largest size with which training converges as well per sample as with smaller ones. It grows as
the model matures. Trials on the next samples find it.

Learning rate (ICASSP, section 4): it is halved when the accuracy on held-out data grows slowly.
When the accuracy drops, the model also goes back to its best state.
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import Literal, TypeAlias

# Whether a criterion should shrink or grow; "auto" decides by its name.
Mode: TypeAlias = Literal["auto", "min", "max"]
# A momentum of 0.9 remembers ten updates. Fewer updates hardly show the effect of a size.
_LEAST_UPDATES_OF_TRIAL = 10


def higher_is_better(monitor: str, mode: Mode = "auto") -> bool:
    """Tells whether a criterion should grow, like an accuracy, or shrink, like a loss.

    Args:
        monitor: name of the criterion in Keras' logs.
        mode: "min", "max", or "auto" to decide by the name.

    Raises:
        ValueError: if the mode is unknown, or "auto" cannot decide by the name.

    Example:
        >>> higher_is_better("sparse_categorical_accuracy")
        True
    """
    if mode not in ("auto", "min", "max"):
        raise ValueError(f'mode must be "auto", "min" or "max". Received: mode={mode!r}.')
    if mode != "auto":
        return mode == "max"
    if "loss" in monitor or "error" in monitor:  # first: an output may be called "accent"
        return False
    if "acc" in monitor or monitor.endswith("auc"):
        return True
    raise ValueError(
        "The name of monitor does not tell whether larger values are better. Received: "
        f'mode="auto" and monitor={monitor!r}. Use mode="max" if larger is better, and mode="min" '
        "for a loss."
    )


def least_steps_of_trial(accumulated: int, delay: int) -> int:
    """Returns the minimum number of minibatches of a trial.

    Args:
        accumulated: number of minibatches per update.
        delay: number of updates by which gradients are delayed.

    Example:
        >>> least_steps_of_trial(accumulated=1, delay=0), least_steps_of_trial(8, 1)
        (10, 88)
    """
    return (_LEAST_UPDATES_OF_TRIAL + delay) * accumulated


def sizes_to_try(last: int, min_size: int, max_size: int, multiple: int) -> list[int]:
    """Returns minibatch sizes from half to twice the last size, in steps of sqrt(2).

    Each is rounded to the nearest multiple that is at most twice the last size, and clipped to the
    range from `min_size` to `max_size`. If all of them are larger than the last size, it is added
    for comparison.

    Args:
        last: number of samples in the last minibatches.
        min_size: smallest number of samples, which is rounded up to a multiple.
        max_size: largest number of samples.
        multiple: number of which all sizes are multiples.

    Returns:
        List of ints, ascending.

    Raises:
        ValueError: if the range has no multiple, or no multiple up to twice the last size.

    Example:
        >>> sizes_to_try(256, min_size=64, max_size=448, multiple=64)
        [128, 192, 256, 384, 448]
        >>> sizes_to_try(32, min_size=64, max_size=448, multiple=64)
        [32, 64]
    """
    least, greatest = -(-min_size // multiple), max_size // multiple
    if not 0 < least <= greatest:
        raise ValueError(
            f"There must be a multiple of {multiple} from min_size to max_size. Received: "
            f"min_size={min_size}, max_size={max_size}. Use a larger max_size, or a smaller "
            "multiple."
        )
    greatest = min(greatest, 2 * last // multiple)
    if greatest < least:
        raise ValueError(
            "The smallest size to try must be at most twice the size of the minibatch. Received: "
            f"minibatches of {last}, and {least * multiple} as the smallest size, from "
            f"min_size={min_size} and multiple={multiple}. Use larger minibatches, or a smaller "
            "multiple."
        )
    exact = (last * 2 ** (exponent / 2) / multiple for exponent in range(-2, 3))
    sizes = {multiple * min(max(math.floor(m + 0.5), least), greatest) for m in exact}
    if min(sizes) > last:
        sizes.add(last)
    return sorted(sizes)


class SizeSearch:
    """Search for the largest minibatch size that costs no accuracy.

    Sizes are tried in ascending order. The criterion of the first, smallest size is the reference.
    A later size fails if its criterion is not finite, or worse than the reference by more than
    `error_margin`, relatively. Sizes above a failed one are not tried.

    Args:
        sizes: list of ints, ascending.
        error_margin: relative margin: 0.01 is 1 %.
        higher_is_better: whether the criterion should grow.

    Attributes:
        trials: list of (size, criterion).

    Example:
        >>> search = SizeSearch([128, 192, 256], error_margin=0.01, higher_is_better=False)
        >>> for loss in (1.0, 1.005, 1.02):
        ...     search.add(loss)
        >>> search.best
        192
    """

    def __init__(self, sizes: Iterable[int], error_margin: float, higher_is_better: bool) -> None:
        self.trials: list[tuple[int, float]] = []
        self._sizes = list(sizes)
        self._error_margin = error_margin
        self._sign = 1 if higher_is_better else -1

    @property
    def next_size(self) -> int | None:
        """Next size to try, or None."""
        tried = len(self.trials)
        if tried == len(self._sizes) or (tried and not self._is_feasible(self.trials[-1][1])):
            return None
        return self._sizes[tried]

    def add(self, criterion: float) -> None:
        """Records the criterion of a trial of `next_size`."""
        trial = self.next_size, float(criterion)
        self.trials.append(trial)  # type: ignore[arg-type]  # there is a next size

    @property
    def best(self) -> int:
        """Largest size that has not failed. If all have failed, the smallest as the safest."""
        feasible = [size for size, criterion in self.trials if self._is_feasible(criterion)]
        return feasible[-1] if feasible else self._sizes[0]

    @property
    def all_failed(self) -> bool:
        return not any(self._is_feasible(criterion) for _, criterion in self.trials)

    def _is_feasible(self, criterion: float) -> bool:
        first = self.trials[0][1]
        if not (math.isfinite(first) and math.isfinite(criterion)):
            return False
        return self._sign * (criterion - first) >= -self._error_margin * abs(first)


@dataclasses.dataclass(frozen=True)
class Decision:
    """Decision after an evaluation.

    Attributes:
        keep: whether to keep this model as the best so far.
        revert: whether to go back to the best model.
        reduce: whether to reduce the learning rate.
        stop: whether to end training.
    """

    keep: bool
    revert: bool
    reduce: bool
    stop: bool


@dataclasses.dataclass
class LearningRateControl:
    """Rule that reduces the learning rate by a criterion on held-out data.

    | criterion against the best so far | model | learning rate |
    |---|---|---|
    | better by `min_improvement`, relatively | kept | stays |
    | better by less, or equal ("grew slowly") | kept | reduced |
    | worse ("dropped"), or not finite | back to the best | reduced |

    The first best model is the initial one.

    Attributes:
        min_improvement: improvement relative to the best: 0.01 is 1 %.
        higher_is_better: whether the criterion should grow.
        continue_reduce: whether every evaluation after the first reduction reduces the learning
            rate again.
        patience: number of successive evaluations without a `min_improvement` after which
            training stops, or None.
        best: best criterion so far, or None.
        reduced: whether the learning rate has been reduced.
        waited: number of successive evaluations without a `min_improvement`.

    Example:
        >>> control = LearningRateControl(0.01, higher_is_better=True)
        >>> control.begin(0.1)
        >>> [control.decide(accuracy).reduce for accuracy in (0.5, 0.6, 0.601, 0.7)]
        [False, False, True, False]
    """

    min_improvement: float
    higher_is_better: bool
    continue_reduce: bool = False
    patience: int | None = None
    best: float | None = None
    reduced: bool = False
    waited: int = 0

    def begin(self, criterion: float) -> None:
        """Records the criterion of the initial model. Any finite one beats it if it is not finite.

        Without it the first evaluation would count as the best, even for a ruined model.
        """
        if math.isfinite(criterion):
            self.best = criterion

    def decide(self, criterion: float) -> Decision:
        """Returns the `Decision` after an evaluation."""
        finite = math.isfinite(criterion)
        improved = dropped = False
        if finite and self.best is None:
            improved = True
        elif finite and self.best is not None:
            gain = (criterion - self.best) * (1 if self.higher_is_better else -1)
            improved = gain > 0 and gain >= self.min_improvement * abs(self.best)
            dropped = gain < 0
        keep = finite and not dropped
        if keep:
            self.best = criterion
        reduce = not improved or (self.continue_reduce and self.reduced)
        self.reduced |= reduce
        self.waited = 0 if improved else self.waited + 1
        stop = self.patience is not None and self.waited >= self.patience
        return Decision(keep, not keep, reduce, stop)


def reduced_rate(learning_rate: float, factor: float, min_learning_rate: float) -> float:
    """Returns the learning rate times a factor below 1, but at least `min_learning_rate`.

    A learning rate that is already below `min_learning_rate` stays unchanged.

    Example:
        >>> reduced_rate(0.1, 0.5, 0.0), reduced_rate(0.1, 0.5, 0.08), reduced_rate(0.1, 0.5, 0.2)
        (0.05, 0.08, 0.1)
    """
    return min(learning_rate, max(learning_rate * factor, min_learning_rate))
