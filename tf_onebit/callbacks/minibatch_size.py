"""AutoMinibatchSize: a search for the largest minibatch size that does not hurt convergence."""

import contextlib
import json
import math
import numbers
import os
import warnings
from typing import Any, Literal

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_onebit._framework_internals.keras_models import logs_of_epoch
from tf_onebit._training import fit
from tf_onebit._training.model_optimizers import (
    batch_size_dependents,
    flush,
    gradient_exchanges_of,
    without_delay,
)
from tf_onebit._tuning_rules import Mode, SizeSearch, higher_is_better, least_steps_of_trial
from tf_onebit._validation import number_of_samples
from tf_onebit.callbacks import learning_rate_factor
from tf_onebit.callbacks.criterion import criterion_of_steps, require_criterion
from tf_onebit.callbacks.size_plot import plot_sizes
from tf_onebit.callbacks.size_range import SizeRange
from tf_onebit.callbacks.snapshot import Snapshot, can_be_taken
from tf_onebit.callbacks.workers import Workers, require_together
from tf_onebit.data import ResizableBatches
from tf_onebit.exchanges.gradients import NOT_FINITE
from tf_onebit.exchanges.state import State

_DAY_OF_SPEECH = 24 * 3600 * 100  # frames of 10 ms


class AutoMinibatchSize(keras.callbacks.Callback):
    """Callback that searches repeatedly for the largest minibatch size that does not hurt training.

    A search runs after every `interval_samples` (Seide et al. 2014, Interspeech, section 4;
    ICASSP, section 4). It tries sizes from half to twice the current one, in steps of sqrt(2), on
    the next `trial_samples`. All trials use the same samples and start from the same state.

    A size passes if its criterion over the trial is within `error_margin` of the smallest size's.
    It fails if the loss is not finite. The search stops at the first size that fails. Training
    then goes back to the state before the search, and trains on these samples with the largest
    size that passed. Other callbacks and Keras' logs do not see the trials.

    The learning rate, a number or a schedule, is multiplied by a factor that follows the size. For
    SGD the factor is proportional to the size, which keeps the learning rate per sample. For Adam
    and its variants it grows with the square root. Momentum and betas stay the same per step.

    Pending gradients are divided by the growth of the learning rate. They are residuals of an
    exchange, velocities and accumulated gradients. The velocities of Keras' SGD hold updates, so
    they stay as they are. Outside of a step `optimizer.learning_rate` excludes the factor, and
    after `fit` steps do not use it either. A later `fit` with the same callback uses it again.

    If a search is due and the epoch has fewer samples left than a trial needs, the search waits
    for the next epoch. If all sizes fail (NaN), the callback warns and training goes on with the
    smallest.

    Args:
        data: the `tf_onebit.ResizableBatches` that `fit` is given.
        interval_samples: number of samples between two searches. Default: 24 hours of speech.
        trial_samples: number of samples of a trial. It must hold at least ten updates of the
            model, and with delayed gradients as many more as these are late. An update takes as
            many minibatches as gradients are accumulated over. Default: 2 % of
            `interval_samples`.
        min_size: least size. Default: the least multiple.
        max_size: greatest size. `trial_samples` always limits it, to a tenth of them or less.
            Default: this limit.
        error_margin: by how much the criterion may be worse than the smallest size's, relatively.
        monitor: the criterion, a name in the logs: "loss" or a metric.
        mode: "min", "max", or "auto": by the name.
        multiple: sizes are rounded to multiples of this, and of the number of workers.
        learning_rate_rule: "linear", "sqrt", "constant", or "auto": by the optimizer.
        tune_without_delay: with a delayed exchange, whether the trials run without delay (Seide et
            al., Interspeech, section 5.4). A trial with minibatches of 2 N then decides on steps
            of size N: these are the halves of a minibatch, exchanged one after the other.

    Attributes:
        history: dictionary of lists, with an entry for the beginning of training and each search.
            `position` is in samples; `global_batch_size` and `learning_rate` apply from there on;
            `trials` is a list of (size, criterion).

    Raises:
        ValueError: for arguments of other types or values. In `fit`, for other data, and
            for sizes that the workers cannot share. For too small a data set or trial. For an
            optimizer without a known rule, for workers that train apart, and for logs without the
            criterion.

    Example:
        >>> import numpy, tf_onebit
        >>> x, y = numpy.ones([640, 8]), numpy.ones([640, 1])
        >>> data = tf_onebit.ResizableBatches((x, y), global_batch_size=4)
        >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        >>> model.compile(keras.optimizers.SGD(1e-4), loss="mse")
        >>> tuning = AutoMinibatchSize(data, interval_samples=192, trial_samples=160, multiple=4)
        >>> _ = model.fit(data, callbacks=[tuning], verbose=0)
        >>> tuning.history["global_batch_size"]
        [4, 8, 16]
    """

    def __init__(
        self,
        data: ResizableBatches,
        interval_samples: int = _DAY_OF_SPEECH,
        trial_samples: int | None = None,
        min_size: int | None = None,
        max_size: int | None = None,
        error_margin: float = 0.01,
        monitor: str = "loss",
        mode: Mode = "auto",
        multiple: int = 64,
        learning_rate_rule: Literal["linear", "sqrt", "constant", "auto"] = "auto",
        tune_without_delay: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(data, ResizableBatches):
            raise ValueError(
                "AutoMinibatchSize changes the size of ResizableBatches. Received: data of type "
                f"{type(data).__name__}. Give tf_onebit.ResizableBatches(data, global_batch_size), "
                "and the same object to model.fit."
            )
        if not isinstance(error_margin, numbers.Real) or not 0 <= error_margin < math.inf:
            raise ValueError(
                "error_margin must be a relative error of at least 0. Received: error_margin="
                f"{error_margin!r}. Use error_margin=0.01 for 1 %."
            )
        learning_rate_factor.require_rule(learning_rate_rule)
        self.data: ResizableBatches = data
        self.interval_samples = number_of_samples("interval_samples", interval_samples)
        if trial_samples is None:
            trial_samples = max(1, self.interval_samples // 50)
        self.trial_samples = number_of_samples("trial_samples", trial_samples)
        self.multiple = number_of_samples("multiple", multiple)
        self.min_size = min_size if min_size is None else number_of_samples("min_size", min_size)
        self.max_size = max_size if max_size is None else number_of_samples("max_size", max_size)
        self.error_margin = float(error_margin)
        self.monitor = monitor
        self.learning_rate_rule = learning_rate_rule
        self.tune_without_delay = bool(tune_without_delay)
        self._higher_is_better = higher_is_better(monitor, mode)
        least = self.min_size or self.multiple
        if self.max_size is not None and self.max_size < least:
            raise ValueError(
                "max_size must be at least min_size and at least multiple. Received: "
                f"min_size={min_size}, max_size={max_size}, multiple={multiple}."
            )
        if self.interval_samples < self.trial_samples:
            raise ValueError(
                "interval_samples must be at least trial_samples. Received: "
                f"interval_samples={interval_samples}, trial_samples={self.trial_samples}. Each "
                "of up to five trials takes as long as training on its samples. Common are "
                "trials of 2 % of the interval."
            )
        self.history: dict[str, list[Any]] = {
            "position": [],
            "global_batch_size": [],
            "learning_rate": [],
            "trials": [],
        }
        self._factors: list[float] | None = None  # on the learning rates
        self._due: int | None = None
        # Number of an epoch that has too few samples left for a trial.
        self._waits_in: int | None = None

    def on_train_begin(self, logs=None):
        data = fit.calling_fit(self.model).data
        if data is not self.data:
            raise ValueError(
                "model.fit must be given the same ResizableBatches as AutoMinibatchSize. "
                f"Received: data of type {type(data).__name__}."
            )
        self._workers = Workers(self.model, "AutoMinibatchSize finds")
        require_together(self.model, "AutoMinibatchSize")
        names = (
            *("interval_samples", "trial_samples", "min_size", "max_size", "error_margin"),
            *("monitor", "multiple", "learning_rate_rule", "tune_without_delay"),
        )
        settings = {name: getattr(self, name) for name in names}
        settings["higher_is_better"] = self._higher_is_better
        self._workers.require_alike("AutoMinibatchSize", settings)
        self._range = self._make_range()
        powers = self._powers
        self._tell(self.data.global_batch_size)
        if self._factors is None:
            self._factors = [1.0] * len(powers)
        learning_rate_factor.begin(self.model, self, self._factors)
        self._waits_in = None
        if self._due is None:
            available = self._available if self._is_at_begin_of_epoch else math.inf
            if available < self._range.trial_samples:
                raise self._range.too_few_samples(available)
            self._due = self.data.position + self.interval_samples
            self._note([])

    def on_train_batch_begin(self, batch, logs=None):
        # The search does not run at the end of the previous batch. So the order of the callbacks
        # does not matter there, and a backup made there precedes the search.
        is_due = self.data.position >= self._due and not fit.is_replaying(self.model)
        # A training that ends now would not use what a search finds.
        if is_due and not self.model.stop_training:
            self._search_if_possible()

    def on_train_batch_end(self, batch, logs=None):
        if logs is not None:
            require_criterion(logs, self.monitor)

    def on_train_end(self, logs=None):
        learning_rate_factor.end(self.model, self)

    def backup_state(self) -> dict[str, npt.NDArray[Any] | np.generic]:
        """Returns the state that a backup keeps: dictionary of NumPy arrays."""
        return {
            "due": np.int64(self._due),  # type: ignore[arg-type]  # known since `fit` began
            "factors": np.array(self._factors),
            "global_batch_size": np.int64(self.data.global_batch_size),
            "history": np.frombuffer(json.dumps(self.history).encode(), np.uint8),
        }

    def restore_state(self, state: State) -> None:
        """Restores the state that `backup_state` returned."""
        self._due = int(state["due"])
        self._set_factors(state["factors"].tolist())
        self.history = json.loads(state["history"].tobytes())
        self.history["trials"] = [[tuple(t) for t in ts] for ts in self.history["trials"]]
        self._tell(self.data.global_batch_size)
        # Another number of workers may need another size.
        growth = self.data.global_batch_size / int(state["global_batch_size"])
        if growth != 1:
            self._follow_size(growth)
            self._note([])

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Writes a plot of minibatch size and trials over samples.

        Args:
            path: path of an image file, with a suffix that Matplotlib knows, like ".png".

        Raises:
            ImportError: without Matplotlib.
            ValueError: if there is no history yet.
        """
        plot_sizes(self.history, self.data.position, path)

    def _search_if_possible(self):
        if not can_be_taken(self.model):
            return
        if self._waits_in == self.data.epoch:
            return
        available = self._available
        if available >= self._range.trial_samples:
            self._search()
            return
        self._waits_in = self.data.epoch  # its rest only gets shorter
        if self._is_at_begin_of_epoch:
            warnings.warn(
                f"The minibatch size stays {self.data.global_batch_size}. "
                f"{self._range.too_few_samples(available)}",
                stacklevel=2,
            )

    @property
    def _available(self):
        """Number of samples that the epoch has left, counted as far as a trial needs them."""
        if self.data.remaining is not None:
            return self.data.remaining
        samples = self._range.trial_samples
        return self.data.peek(samples, samples).samples

    @property
    def _is_at_begin_of_epoch(self):
        return self.data.offset == 0

    def _search(self):
        sizes, last = self._range.sizes(), self.data.global_batch_size
        search = SizeSearch(sizes, self.error_margin, self._higher_is_better)
        if sizes != [last]:
            # Gradients under way belong to the learning rate until now.
            flush(self.model)
        if len(sizes) > 1:
            with self._delay_of_trials():
                self._try_sizes(search)
            if search.all_failed:
                warnings.warn(
                    "The criterion is not finite with any minibatch size. Received: "
                    f"{self.monitor} of {search.trials}. Training continues with the smallest "
                    f"size: {search.best}. Reduce the learning rate.",
                    stacklevel=2,
                )
        self.data.resize(search.best)
        self._tell(search.best)
        self._follow_size(search.best / last)
        self._due = self.data.position + self.interval_samples
        self._note(search.trials)

    def _make_range(self):
        """Returns the `SizeRange` of the sizes that can be tried."""
        exchanges = gradient_exchanges_of(self.model)
        delay = max((exchange.steps_of_delay for exchange in exchanges), default=0)
        steps_of_minibatch = 2 if delay and self.tune_without_delay else 1
        optimizers = learning_rate_factor.scaled_optimizers(self.model)
        accumulated = max(optimizer.gradient_accumulation_steps or 1 for optimizer in optimizers)
        return SizeRange(
            *(self.data, self.trial_samples, self.min_size, self.max_size, self.multiple),
            least_steps_of_trial(accumulated, 0 if self.tune_without_delay else delay),
            steps_of_minibatch,
        )

    def _delay_of_trials(self):
        return without_delay(self.model) if self.tune_without_delay else contextlib.nullcontext()

    def _try_sizes(self, search):
        last = self.data.global_batch_size
        factors = self._factors
        before = Snapshot.of(self.model, "a search for the minibatch size")
        while search.next_size is not None:
            size = search.next_size * self._range.steps_of_minibatch
            self._tell(size)
            self._follow_size(size / last)
            try:
                occasion = f"trial of the minibatch size {size} at sample {self.data.position}"
                search.add(self._workers.mean(self._criterion(size), occasion))
            finally:
                before.restore(self.model)
                self._set_factors(factors)
                self._tell(last)

    def _criterion(self, size):
        """Returns the criterion of training on the next samples with a size."""
        self.model.reset_metrics()
        before = self.model.get_metrics_result()
        peek = self.data.peek(self._range.trial_samples, size)
        try:
            logs = [self.model.train_function(minibatch) for minibatch in peek]
            # This applies the gradients that are still under way: those of the last minibatches.
            after = logs_of_epoch(self.model, logs[-1])
        except tf.errors.InvalidArgumentError as error:
            if NOT_FINITE not in str(error):
                raise
            return math.nan
        if after is logs[-1]:
            after = self.model.get_metrics_result()
        return criterion_of_steps(logs, peek.sizes, before, after, self.monitor)

    @property
    def _powers(self):
        """Powers of the size that the optimizers' learning rates follow: list of floats."""
        return [
            learning_rate_factor.power_of_size(optimizer, self.learning_rate_rule)
            for optimizer in learning_rate_factor.scaled_optimizers(self.model)
        ]

    def _follow_size(self, growth):
        """Adapts learning rates and pending gradients to a size that has grown by a factor."""
        before = self._factors
        factors = zip(before, self._powers, strict=True)
        self._set_factors([factor * growth**power for factor, power in factors])
        learning_rate_factor.rescale_pending_gradients(self.model, before, self._factors)

    def _set_factors(self, factors):
        self._factors = factors
        learning_rate_factor.set_factors(self.model, self, factors)

    def _tell(self, size):
        """Sets the global batch size of optimizers and exchanges that count samples."""
        for owner, steps in batch_size_dependents(self.model):
            owner.set_global_batch_size(size * steps)

    def _note(self, trials):
        entry = {
            "position": self.data.position,
            "global_batch_size": self.data.global_batch_size,
            "learning_rate": learning_rate_factor.learning_rate(self.model),
            "trials": list(trials),
        }
        for name, value in entry.items():
            self.history[name].append(value)
