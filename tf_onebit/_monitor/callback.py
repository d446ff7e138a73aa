"""Monitor: bytes, residuals and times of exchanges, as Keras logs and TensorBoard scalars."""

import math
import os

import keras

from tf_onebit._framework_internals.keras_calls import find_fit
from tf_onebit._framework_internals.tf_variables import first_copy
from tf_onebit._monitor.step_times import StepTimes, blocks_of, built_of
from tf_onebit._monitor.tensorboard import Scalars
from tf_onebit._monitor.timed_step import TimedStep
from tf_onebit._training import fit
from tf_onebit._training.model_optimizers import (
    batch_size_dependents,
    gradient_exchanges_of,
    inner_optimizer,
    optimizers_of,
)
from tf_onebit._training.scaled_learning_rate import learning_rate_of
from tf_onebit.exchanges.state import summed

# Times of fewer batches vary much, and evaluating them takes as long as the rest of a reading.
_BATCHES_OF_TIMES = 50


class Monitor(keras.callbacks.Callback):
    """Callback that reports bytes, residuals and times of the exchange of gradients.

    It adds to the logs of every batch and epoch:

    - `bytes_sent`: bytes that this worker sends per exchange, which is per step, or per update with
      gradient accumulation. With `BlockMomentum` it includes the bytes of a block, divided by the
      block's steps.
    - `compression_ratio`: bytes of the same exchange in float32, divided by `bytes_sent`.
    - `residual_norm`: L2 norm of this worker's residuals, the values not sent yet.

    With `groups="node"` these are of what it sends to other nodes, and of its slices.

    For threshold-sparse exchanges it adds

    - `density`: the share of values that exceeded the threshold `tau`, in a step or a block.

    For asynchronous exchanges it adds

    - `staleness`: number of steps by which the slowest worker is behind this one.
    - `delay`: mean number of its own steps after which this worker's updates reach the others.

    The progress bar, `History` and TensorBoard's epoch logs show these values.

    With `log_dir` they are also written as TensorBoard scalars, such as `exchange/bytes_sent`.
    Further scalars are `step/learning_rate`, `step/predicted_seconds` (`predicted_step_seconds`)
    and, where it is known, `step/global_batch_size`. The batch size is known from
    `ResizableBatches`, from `set_global_batch_size` or from Keras. At the end of an epoch, and
    after 50 batches or more, the following are added:

    - `exchange/seconds`: time in which an exchange of some bucket is under way.
    - `exchange/hidden_share`: share of that time in which local gradients were still computed.
    - `exchange/work_seconds`: time in which gradients are encoded, added up or decoded.
    - `exchange/synchronization_seconds`: with `BlockMomentum`, time of the end of a block.
    - `step/seconds`: time of a step, or of an update with gradient accumulation.
    - `variables/residual_norm/<variable>`: L2 norm of each variable's residual, at the end of an
      epoch only, because it takes a pass over all residuals.

    The callback warns once per `fit` if compression does not pay. That is, if the exchange is not a
    tenth faster than in full precision, counting the time to encode, add up and decode.
    `docs/monitor.md` describes all values in detail.

    Exchanges are timed in the graph. For this `fit` traces the training step again, which computes
    the same bits. After `fit` the model gets its old training step back. If `fit` was interrupted,
    it gets that back when the same Monitor begins another.

    Args:
        update_freq: number of batches between two readings. Reading waits for the step.
        log_dir: folder in which every reading is also written as TensorBoard scalars, if given. In
            a job of several processes each writes into a subfolder with its rank as name.
        predicted_step_seconds: expected time of a step, in seconds, shown beside the measured one.
        timeline: path of a file for chrome://tracing or ui.perfetto.dev, if given. It shows the
            first 100 steps and the work of each bucket. Each process writes one, with its rank
            before the ending: "trace.json" becomes "trace.0.json".

    Raises:
        ValueError: if `update_freq` or `predicted_step_seconds` is not positive, or no optimizer
            of the model exchanges gradients.

    Example:
        >>> import tf_onebit, tf_onebit.horovod as hvd
        >>> hvd.init()
        >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        >>> optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), tf_onebit.OneBit())
        >>> model.compile(optimizer, loss="mse")
        >>> data = keras.ops.ones([32, 8]), keras.ops.ones([32, 1])
        >>> history = model.fit(*data, verbose=0, callbacks=[Monitor()]).history
        >>> sorted(history)
        ['bytes_sent', 'compression_ratio', 'loss', 'residual_norm']
    """

    def __init__(
        self,
        update_freq: int = 10,
        log_dir: str | os.PathLike[str] | None = None,
        predicted_step_seconds: float | None = None,
        timeline: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        if update_freq < 1:
            raise ValueError(
                "update_freq must be a positive number of batches. "
                f"Received: update_freq={update_freq}."
            )
        if predicted_step_seconds is not None and not predicted_step_seconds > 0:
            raise ValueError(
                "predicted_step_seconds must be a positive number of seconds. Received: "
                f"predicted_step_seconds={predicted_step_seconds}. Leave it out if there is no "
                "prediction."
            )
        self.update_freq = update_freq
        self.log_dir = log_dir
        self.predicted_step_seconds = predicted_step_seconds
        self.timeline = timeline
        self._timed_step = TimedStep()
        self._scalars: Scalars | None = None
        self._latest: dict[str, float] = {}
        self._next_reading = 0

    def on_train_begin(self, logs=None):
        self._exchanges = gradient_exchanges_of(self.model)
        if not self._exchanges:
            raise ValueError(
                "Monitor needs an optimizer that exchanges gradients. Received: optimizer="
                f"{self.model.optimizer!r}. Compile the model in the scope of a strategy of "
                "tf_onebit.distribute, or with tf_onebit.horovod.DistributedOptimizer."
            )
        optimizers = optimizers_of(self.model)
        self._optimizers = [o for o in optimizers if hasattr(o, "gradient_exchange")]
        if self.log_dir is not None:
            self._scalars = Scalars(self._folder())
        call = find_fit(self.model)
        self._data = None if call is None else call.data
        self._samples = None if call is None else self._samples_of_update(call)
        self._batch_size_dependents = [owner for owner, _ in batch_size_dependents(self.model)]
        self._times = StepTimes(self._exchanges, self._timed_step.recorder, self.timeline)
        self._timed_step.begin(self.model, self._exchanges)

    def on_epoch_begin(self, epoch, logs=None):
        self._next_reading = 0

    def on_train_batch_begin(self, batch, logs=None):
        self._times.begin(batch)

    def on_train_batch_end(self, batch, logs=None):
        if not fit.is_replaying(self.model):
            # Keras may execute fewer batches together at the end than `batch` says.
            steps = (self.params or {}).get("steps") or math.inf
            self._times.end(min(batch, steps - 1))
        # With `steps_per_execution` Keras does not report every batch.
        if batch >= self._next_reading:
            self._read()
            self._add_reading()
            if self._times.batches >= _BATCHES_OF_TIMES:
                self._add_times()
            self._next_reading = batch + self.update_freq
        if logs is not None:
            logs.update(self._latest)

    def on_epoch_end(self, epoch, logs=None):
        self._read()
        self._add_times()
        self._add(self._residual_norms())
        if logs is not None:
            logs.update(self._latest)

    def on_train_end(self, logs=None):
        self._timed_step.end()
        self._times.write_timeline()
        self._data = None
        if self._scalars is not None:
            self._scalars.close()
            self._scalars = None

    def _folder(self):
        """Returns the folder of this process: TensorBoard allows one writer per folder."""
        engine = self._exchanges[0].workers.engine
        if len(engine.ranks) == engine.world_size:
            return self.log_dir
        return os.path.join(self.log_dir, str(engine.ranks[0]))

    def _optimizer(self):
        """Returns the first optimizer that exchanges something, or before the first step any."""
        built = (o for o in self._optimizers if o.gradient_exchange.built)
        return next(built, self._optimizers[0])

    def _read(self):
        built, blocks = built_of(self._exchanges), blocks_of(self._exchanges)
        bytes_sent = sum(part.bytes_sent() for part in (*built, *blocks))
        full_bytes = sum(exchange.full_precision_bytes() for exchange in built)
        squares = sum(part.residual_sum_of_squares() for part in (*built, *blocks))
        self._latest = {
            "bytes_sent": float(bytes_sent),
            "compression_ratio": full_bytes / bytes_sent if bytes_sent else 1.0,
            "residual_norm": math.sqrt(squares),
        }
        for part in (*self._exchanges, *blocks):
            self._latest |= part.metrics()

    def _settings(self):
        """Returns the settings of the next step: dictionary of scalars."""
        settings = {"step/learning_rate": learning_rate_of(inner_optimizer(self._optimizer()))}
        if self.predicted_step_seconds is not None:
            settings["step/predicted_seconds"] = self.predicted_step_seconds
        of_step = getattr(self._data, "global_batch_size", None)
        of_update = None if of_step is None else of_step * self._batches_of_update()
        known = [owner.global_batch_size for owner in self._batch_size_dependents]
        known = [size for size in (of_update, *known, self._samples) if size is not None]
        if known:
            settings["step/global_batch_size"] = known[0]
        return settings

    def _samples_of_update(self, call):
        """Returns the number of samples of an update over all workers, if Keras knows it.

        Returns None where Keras does not know the size of a batch.
        """
        samples = call.batch_size
        if samples is None:
            return None
        # In a strategy Keras' batches hold the samples of all its workers.
        workers = self._exchanges[0].workers.engine.world_size
        workers //= self.model.distribute_strategy.num_replicas_in_sync
        return samples * workers * self._batches_of_update()

    def _batches_of_update(self):
        return inner_optimizer(self._optimizer()).gradient_accumulation_steps or 1

    def _residual_norms(self):
        """Returns the norms of the residuals, by variable: dictionary of scalars."""
        if self._scalars is None:
            return {}
        parts = built_of(self._exchanges) + blocks_of(self._exchanges)
        squares = summed(part.residual_squares() for part in parts)
        return {
            f"variables/residual_norm/{name}": math.sqrt(square) for name, square in squares.items()
        }

    def _add_reading(self):
        if self._scalars is not None:
            latest = {f"exchange/{name}": value for name, value in self._latest.items()}
            self._add(latest | self._settings())

    def _add_times(self):
        self._add(self._times.read(self._batches_of_update()))

    def _add(self, scalars):
        if self._scalars is not None:
            self._scalars.add(int(first_copy(self._optimizer().iterations)), scalars)
