"""Horovod's schedules of the learning rate for Keras 3."""

from collections.abc import Callable

import horovod.tensorflow as hvd
import keras

from tf_onebit._framework_internals.keras_optimizers import learning_rate_setting_of, velocities_of
from tf_onebit._training.model_optimizers import inner_optimizer


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Callback that multiplies the learning rate in a range of epochs.

    When the rate changes from a to b, the callback multiplies velocities of SGD and RMSprop by
    b / a. This is the momentum correction of Goyal et al. 2017 (section 3). Horovod multiplies the
    momentum coefficient in the next step instead, but Keras 3 compiles that coefficient into the
    step. The velocity becomes the same. With `nesterov` the step uses the coefficient a second
    time, and there it differs.

    Each epoch logs the learning rate as "lr".

    Args:
        initial_lr: float, the learning rate before multiplication.
        multiplier: function of the epoch, which is a float within an epoch. Or a number, whose
            exponent is the number of epochs since `start_epoch`.
        start_epoch: first epoch, counted from 0, in which the callback sets the rate.
        end_epoch: first epoch in which it no longer does. Default: none.
        staircase: whether the rate changes between epochs only. Else it changes in every batch.
        momentum_correction: whether velocities are multiplied.
        steps_per_epoch: number of batches. Default: the number that Keras knows.

    Raises:
        ValueError: without `initial_lr`. Also in `fit`, for an optimizer with a schedule of its
            own, and for a number of batches that is needed but unknown.

    Example:
        >>> callback = LearningRateScheduleCallback(0.1, multiplier=0.5, start_epoch=10)
        >>> callback.multiplier(11)
        0.5
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError(
                "initial_lr must be the learning rate at the start. Received: initial_lr=None. "
                "Pass the one that the optimizer was made with."
            )
        self.initial_lr = initial_lr
        self.multiplier = multiplier
        if not callable(multiplier):
            self.multiplier = lambda epoch: multiplier ** (epoch - start_epoch)
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = None

    def on_train_begin(self, logs=None):
        rate = learning_rate_setting_of(self._optimizer)
        if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
            raise ValueError(
                f"{type(self).__name__} sets the learning rate, and needs one that is a number. "
                f"Received: an optimizer with the schedule {type(rate).__name__}. Make it with "
                f"learning_rate={self.initial_lr}, or leave the callback out."
            )
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise ValueError(
                    f"{type(self).__name__} must know how many batches an epoch has, and Keras "
                    "does not know it. Received: steps_per_epoch=None. Pass steps_per_epoch."
                )

    def on_epoch_begin(self, epoch, logs=None):
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        epoch = self.current_epoch
        is_over = self.end_epoch is not None and epoch >= self.end_epoch
        if epoch < self.start_epoch or is_over or (self.staircase and batch > 0):
            return
        self._set(epoch if self.staircase else epoch + batch / self.steps_per_epoch)

    def on_epoch_end(self, epoch, logs=None):
        if logs is not None:
            logs["lr"] = float(self._optimizer.learning_rate)

    @property
    def _optimizer(self):
        return inner_optimizer(self.model.optimizer)

    def _set(self, epoch):
        optimizer = self._optimizer
        before = float(optimizer.learning_rate)
        optimizer.learning_rate = self.initial_lr * self.multiplier(epoch)
        ratio = float(optimizer.learning_rate) / before if before else 1.0
        if self.momentum_correction and ratio != 1.0:
            for velocity in velocities_of(optimizer):
                velocity.assign(velocity * ratio)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Callback that raises the learning rate from one worker's rate to all workers', per batch.

    For N workers (Goyal et al. 2017, section 2.2)::

        lr = initial_lr / N * (1 + (N - 1) * epochs / warmup_epochs)

    `epochs` is the number of epochs so far, with a fraction within an epoch.

    Args:
        initial_lr: float, the learning rate at the end, usually N times the rate of one worker.
        warmup_epochs: number of epochs.
        momentum_correction, steps_per_epoch: see `LearningRateScheduleCallback`.
        verbose: 1 to print on worker 0 when warm-up ends.

    Raises:
        ValueError: see `LearningRateScheduleCallback`.

    Example:
        >>> callback = LearningRateWarmupCallback(initial_lr=0.1 * 4, warmup_epochs=3, verbose=1)
        >>> callback.end_epoch
        3
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch):
            # Counts the batch itself, so that the last one of an epoch has a whole number.
            epoch += 1 / self.steps_per_epoch
            return (1 + epoch * (hvd.size() - 1) / warmup_epochs) / hvd.size()

        super().__init__(
            initial_lr,
            multiplier,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        if epoch == self.end_epoch - 1 and self.verbose > 0 and hvd.rank() == 0:
            rate = float(self._optimizer.learning_rate)
            print(f"\nEpoch {epoch + 1}: the learning rate is warmed up, to {rate:g}.")
