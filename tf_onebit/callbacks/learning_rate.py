"""AutoLearningRate: a learning rate that is reduced by a criterion on held-out data."""

import dataclasses
import enum
import json
import math
import numbers
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_onebit._training import fit
from tf_onebit._training.model_optimizers import gradient_exchanges_of, optimizers_of
from tf_onebit._tuning_rules import LearningRateControl, Mode, higher_is_better, reduced_rate
from tf_onebit._validation import is_number, number_of_samples
from tf_onebit.callbacks import learning_rate_factor, training_state
from tf_onebit.callbacks.criterion import criterion_in
from tf_onebit.callbacks.snapshot import Snapshot, can_be_taken
from tf_onebit.callbacks.workers import Workers, require_together
from tf_onebit.data import ResizableBatches
from tf_onebit.exchanges.state import State, part_of


class _Ending(enum.Enum):
    """Stages of ending a training by patience."""

    NOT_YET = enum.auto()
    BUT_FOR_A_STEP = enum.auto()  # Keras makes one more step after the decision
    WITH_BEST = enum.auto()
    IN_RUN_RESUMED = enum.auto()


class AutoLearningRate(keras.callbacks.Callback):
    """Callback that reduces the learning rate by a criterion on held-out data.

    The model is evaluated on held-out data at the beginning and after every `interval_samples`
    (Seide et al. 2014, ICASSP, section 4). If the criterion improved too little, the learning rate
    is multiplied by `factor`. If it became worse, the callback also restores the best model: the
    weights, optimizer and exchange of the best evaluation, from memory. It does the same if the
    criterion or the loss is not finite.

    Restoring resets the number of steps, which schedules follow. It resets neither the position in
    the data nor random generators. When patience ends training, the best model is restored before
    that epoch ends, so it is the one that is validated and saved.

    The factor acts on the optimizer's own learning rate, which a schedule or other callbacks may
    set: see `AutoMinibatchSize`. The two callbacks can be combined.

    Args:
        validation_data: held-out data, as for `model.fit`, the same in each evaluation. Over
            Horovod each worker may have a part of them: the criterion is the mean over the workers.
        interval_samples: number of samples, over all workers, between two evaluations.
        monitor: the criterion: "loss" or a metric of the model.
        mode: "min", "max", or "auto": by the name.
        factor: the learning rate is multiplied by this; between 0 and 1.
        min_improvement: least improvement over the best criterion so far, relative to it, with
            which the learning rate stays.
        continue_reduce: whether the learning rate, once reduced, is reduced after every interval.
        min_learning_rate: least learning rate, without the factor of `AutoMinibatchSize`.
        patience: number of evaluations in a row without a `min_improvement` after which training
            ends. Default: no limit.
        batch_size: batch size of the evaluation, as in `model.evaluate`.
        global_batch_size: number of samples of a step, over all workers. Required unless the data
            of `fit` are `tf_onebit.ResizableBatches`. Every step counts as this many samples, also
            one with a short last batch of an epoch.

    Attributes:
        history: dictionary of lists, with an entry for each evaluation after the first, which is
            of the initial model: `position` in samples, `criterion`, `learning_rate` from there
            on, and whether the model was `reverted`.

    Raises:
        ValueError: for arguments of other types or values. For data that do not end or can be read
            only once. In `fit`, if the number of samples of a step or the criterion is not known,
            or workers train apart.

    Example:
        >>> import numpy, tf_onebit
        >>> x, y = numpy.ones([512, 8]), numpy.ones([512, 1])
        >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        >>> model.compile(keras.optimizers.SGD(0.5), loss="mse")
        >>> control = AutoLearningRate((x, y), interval_samples=128, global_batch_size=32)
        >>> _ = model.fit(x, y, batch_size=32, callbacks=[control], verbose=0)
        >>> control.history["learning_rate"][-1] < 0.5
        True
    """

    def __init__(
        self,
        validation_data: Any,
        interval_samples: int,
        monitor: str = "loss",
        mode: Mode = "auto",
        factor: float = 0.5,
        min_improvement: float = 0.005,
        continue_reduce: bool = False,
        min_learning_rate: float = 0.0,
        patience: int | None = None,
        batch_size: int | None = None,
        global_batch_size: int | None = None,
    ) -> None:
        super().__init__()
        if validation_data is None:
            raise ValueError(
                "AutoLearningRate needs held-out data. Received: validation_data=None. Give for "
                "example (x, y)."
            )
        if not is_number(factor) or not 0 < factor < 1:
            raise ValueError(
                f"factor must be between 0 and 1. Received: factor={factor!r}. Use factor=0.5 to "
                "halve the learning rate."
            )
        for name, value in {
            "min_improvement": min_improvement,
            "min_learning_rate": min_learning_rate,
        }.items():
            if not is_number(value) or not 0 <= value < math.inf:
                raise ValueError(f"{name} must be at least 0. Received: {name}={value!r}.")
        if patience is not None and (not isinstance(patience, numbers.Integral) or patience < 1):
            raise ValueError(
                "patience must be a positive number of evaluations, or None. Received: patience="
                f"{patience!r}."
            )
        _require_repeatable(validation_data)
        self.validation_data = validation_data
        self.interval_samples = number_of_samples("interval_samples", interval_samples)
        self.monitor = monitor.removeprefix("val_")
        self.factor = float(factor)
        self.min_learning_rate = float(min_learning_rate)
        self.batch_size = batch_size
        self.global_batch_size = global_batch_size
        if global_batch_size is not None:
            self.global_batch_size = number_of_samples("global_batch_size", global_batch_size)
        self._control = LearningRateControl(
            float(min_improvement),
            higher_is_better(monitor, mode),
            bool(continue_reduce),
            patience if patience is None else int(patience),
        )
        self.history: dict[str, list[Any]] = {
            "position": [],
            "criterion": [],
            "learning_rate": [],
            "reverted": [],
        }
        self._best: Snapshot | None = None
        self._best_is_of: list[Any] | None = None  # the model and its optimizers
        # Other callbacks' factors on its learning rates.
        self._factors_of_best: list[float] | None = None
        self._reduced_by = 1.0
        self._steps = 0
        self._due: int | None = None
        self._ending = _Ending.NOT_YET

    def on_train_begin(self, logs=None):
        self._workers = Workers(self.model, "AutoLearningRate asks")
        require_together(self.model, "AutoLearningRate")
        names = ("interval_samples", "monitor", "factor", "min_learning_rate", "global_batch_size")
        settings = {name: getattr(self, name) for name in names}
        settings["rule"] = dataclasses.asdict(self._control)
        self._workers.require_alike("AutoLearningRate", settings)
        data = fit.calling_fit(self.model).data
        self._data = data if isinstance(data, ResizableBatches) else None
        if self._data is None and self.global_batch_size is None:
            raise ValueError(
                "The number of samples of a step must be known. Received: "
                f"global_batch_size=None, and data of type {type(data).__name__}. Give "
                "global_batch_size, or data as tf_onebit.ResizableBatches."
            )
        learning_rate_factor.begin(self.model, self, self._reduced_by)
        trained = [self.model, *optimizers_of(self.model)]
        if self._best_is_of not in (None, trained):  # compiled again, with another optimizer
            self._best = self._control.best = None
        self._best_is_of = trained
        if self._due is None:
            self._due = self._position + self.interval_samples
        if self._ending is not _Ending.IN_RUN_RESUMED:
            self._ending = _Ending.NOT_YET

    def on_train_batch_begin(self, batch, logs=None):
        # A backup at the end of the previous batch may run before or after this callback. So
        # evaluation and counting of steps happen here: see AutoMinibatchSize.
        if fit.is_replaying(self.model):
            return
        if self._ending is _Ending.IN_RUN_RESUMED:
            self._stop()
        elif self._best is None:
            self._begin_if_possible()
        else:
            self._evaluate_if_due()
        self._steps += self.model.steps_per_execution

    def on_train_batch_end(self, batch, logs=None):
        self._end_with_best()

    def on_epoch_end(self, epoch, logs=None):
        self._end_with_best()  # no step ends if the data end first

    def on_train_end(self, logs=None):
        optimizer = self.model.optimizer
        goes_on = self._ending is _Ending.NOT_YET
        if goes_on and self._evaluate_if_due() and optimizer is not None:
            # Keras has done this before: it assigns the optimizer's averages, if it has them.
            optimizer.finalize_variable_values(self.model.trainable_weights)
        learning_rate_factor.end(self.model, self)
        self._ending = _Ending.NOT_YET  # a later fit goes on

    def backup_state(self) -> State:
        """Returns the state that a backup keeps: dictionary of NumPy arrays."""
        progress = {
            "due": self._due,
            "steps": self._steps,
            "reduced_by": self._reduced_by,
            "control": dataclasses.asdict(self._control),
            "history": self.history,
            "factors_of_best": self._factors_of_best,
            "has_ended": self._ending is not _Ending.NOT_YET,
        }
        best = {} if self._best is None else self._best.state
        return {
            "progress": np.frombuffer(json.dumps(progress).encode(), np.uint8),
            **{f"best/{name}": array for name, array in best.items()},
        }

    def restore_state(self, state: State) -> None:
        """Restores the state that `backup_state` returned."""
        progress = json.loads(state["progress"].tobytes())
        self._due, self._steps = progress["due"], progress["steps"]
        self._reduced_by, self.history = progress["reduced_by"], progress["history"]
        self._factors_of_best = progress["factors_of_best"]
        if progress["has_ended"]:
            self._ending = _Ending.IN_RUN_RESUMED
        for name in ("best", "reduced", "waited"):
            setattr(self._control, name, progress["control"][name])
        learning_rate_factor.set_factors(self.model, self, self._reduced_by)
        best = part_of(state, "best")
        for i, exchange in enumerate(gradient_exchanges_of(self.model)):
            world_size = exchange.workers.engine.world_size
            workers, _ = best.get(f"exchange_{i}/built", (world_size, 0))
            if workers != world_size:  # the exchange keeps its current state
                best = {k: v for k, v in best.items() if not k.startswith(f"exchange_{i}/")}
        self._best = Snapshot(best, training_state.random_state()) if best else None

    @property
    def _position(self):
        if self._data is not None:
            return self._data.position
        return self._steps * self.global_batch_size

    def _begin_if_possible(self):
        """Evaluates the initial model, which the first interval is compared with."""
        if can_be_taken(self.model):
            self._control.begin(self._mean_criterion())
            self._keep()

    def _keep(self):
        self._best = Snapshot.of(self.model, "an evaluation for the learning rate")
        self._factors_of_best = self._factors_of_others()

    def _go_back(self):
        self._best.restore_learned(self.model)
        now = self._factors_of_others()
        learning_rate_factor.rescale_pending_gradients(self.model, self._factors_of_best, now)

    def _factors_of_others(self):
        return [f / self._reduced_by for f in learning_rate_factor.factors(self.model)]

    def _end_with_best(self):
        """Restores the best model when patience has ended training.

        Keras makes one more step after the decision, which this undoes.
        """
        if self._ending is _Ending.BUT_FOR_A_STEP:
            self._go_back()
            self._ending = _Ending.WITH_BEST

    def _evaluate_if_due(self):
        """Evaluates the model if an evaluation is due. Returns whether it restored the best."""
        if self._position < self._due or not can_be_taken(self.model):
            return False
        criterion = self._mean_criterion()
        decision = self._control.decide(criterion)
        if decision.keep:
            self._keep()
        if decision.revert and self._best is not None:
            self._go_back()
        if decision.reduce:
            self._reduce()
        if decision.stop:
            self._stop()
        self._due = self._position + self.interval_samples
        entry = {
            "position": self._position,
            "criterion": criterion,
            "learning_rate": learning_rate_factor.learning_rate(self.model),
            "reverted": decision.revert,
        }
        for name, value in entry.items():
            self.history[name].append(value)
        return decision.revert

    def _stop(self):
        self.model.stop_training = True
        self._ending = _Ending.BUT_FOR_A_STEP

    def _mean_criterion(self):
        """Returns the mean of the criterion over the workers."""
        occasion = f"evaluation for the learning rate after {self._steps} steps"
        return self._workers.mean(self._criterion(), occasion)

    def _criterion(self):
        """Returns the criterion on this worker's held-out data."""
        random_state = training_state.random_state()
        metrics = training_state.metrics_of(self.model)
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(self.validation_data)
        logs = self.model.evaluate(
            x, y, self.batch_size, verbose=0, sample_weight=sample_weight, return_dict=True
        )
        self.model.reset_metrics()  # also those that the evaluation has created
        training_state.assign_variables(self.model, metrics)
        training_state.set_random_state(self.model, random_state)
        return criterion_in(logs, self.monitor)

    def _reduce(self):
        own = learning_rate_factor.own_learning_rate(self.model) * self._reduced_by
        ratio = reduced_rate(own, self.factor, self.min_learning_rate) / own if own > 0 else 1.0
        self._reduced_by *= ratio
        learning_rate_factor.set_factors(self.model, self, self._reduced_by)


def _require_repeatable(data):
    """Raises ValueError for data that do not end, or that can be read only once."""
    if isinstance(data, Iterator):
        what, remedy = "can be read only once", "Give arrays, a tf.data.Dataset or a PyDataset."
    elif isinstance(data, tf.data.Dataset) and data.cardinality() == tf.data.INFINITE_CARDINALITY:
        what, remedy = "does not end", "Leave out repeat(), or use take(batches)."
    elif isinstance(data, keras.utils.PyDataset) and data.num_batches is None:
        what, remedy = "does not end", "Have its __len__ return the number of batches."
    else:
        return
    raise ValueError(
        "Every evaluation must read the same validation_data completely. Received: a "
        f"{type(data).__name__} that {what}. {remedy}"
    )
