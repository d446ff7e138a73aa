"""The minibatch sizes that workers can share, and for which trials are long enough."""

import math
import warnings

from tf_onebit._tuning_rules import sizes_to_try


class SizeRange:
    """The minibatch sizes that can be tried in trials of a given number of samples.

    Args:
        data: the `ResizableBatches` of a running `fit`.
        trial_samples, min_size, max_size, multiple: as in `AutoMinibatchSize`.
        least_minibatches: least number of minibatches of a trial.
        steps_of_minibatch: number of training steps that a minibatch of a trial stands for.

    Attributes:
        trial_samples: number of samples of a trial, divided equally among the workers.
        steps_of_minibatch: as given.

    Raises:
        ValueError: for sizes that the workers cannot share equally. For trials too short for the
            current or the least size. For an epoch too short for a trial, and for a range without
            a size.
    """

    def __init__(
        self,
        data,
        trial_samples,
        min_size,
        max_size,
        multiple,
        least_minibatches,
        steps_of_minibatch,
    ):
        for name, size in {"min_size": min_size, "max_size": max_size}.items():
            if size is not None and size % data.parts != 0:
                raise ValueError(
                    f"{name} must be a multiple of the number of workers, which is {data.parts}. "
                    f"Received: {name}={size}. Use {-(-size // data.parts) * data.parts}."
                )
        self.trial_samples = trial_samples // data.parts * data.parts
        self.steps_of_minibatch = steps_of_minibatch
        self._data, self._given = data, trial_samples
        self._multiple = math.lcm(multiple, data.parts)
        self._least = self._multiple if min_size is None else min_size
        self._max_size = math.inf if max_size is None else max_size
        self._least_minibatches = least_minibatches
        self._limit = self.trial_samples // (least_minibatches * steps_of_minibatch)
        self._require_trials_that_tell()
        if data.samples is not None and data.samples < self.trial_samples:
            raise self.too_few_samples(data.samples)
        self.sizes()  # raises ValueError if the range has no size

    def sizes(self):
        """Returns the sizes to try next: list of ints, ascending."""
        greatest = min(self._limit, self._max_size)
        return sizes_to_try(self._data.global_batch_size, self._least, greatest, self._multiple)

    def too_few_samples(self, samples):
        """Returns a ValueError that says that an epoch is shorter than a trial."""
        return ValueError(
            "An epoch must have at least the samples of a trial. Received: "
            f"trial_samples={self._given}, and an epoch of {samples} samples. Use a shorter "
            "trial, or more data."
        )

    def _require_trials_that_tell(self):
        now = self._data.global_batch_size
        least = -(-self._least // self._multiple) * self._multiple
        size = max(least, now) * self.steps_of_minibatch
        samples = self._least_minibatches * size
        longer = f"Use trial_samples={2 * samples}, which allows for twice as many"
        if self.trial_samples < samples:
            why = (
                ", the smallest that min_size, multiple and the number of workers allow"
                if least > now
                else ""
            )
            raise ValueError(
                f"A trial must have at least {self._least_minibatches} minibatches: ten updates, "
                f"and one more for each step of delay. Received: trial_samples={self._given}, and "
                f"minibatches of {size}{why}. {longer}, or smaller minibatches."
            )
        if self._max_size > now >= self._limit // self._multiple * self._multiple:
            warnings.warn(
                f"Minibatches of more than {now} samples are not tried, because a trial has at "
                f"least {self._least_minibatches} minibatches. Received: "
                f"trial_samples={self._given}. {longer}.",
                stacklevel=2,
            )
