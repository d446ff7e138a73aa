"""Monitor: what the exchange costs and holds back, as Keras logs and TensorBoard scalars."""

import math
import time
import warnings

import keras
import tensorflow as tf

from tf_onebit.callbacks import fit
from tf_onebit.callbacks.exchange_cost import ExchangeCost
from tf_onebit.callbacks.exchange_times import ExchangeTimes, seconds
from tf_onebit.callbacks.timeline import Timeline
from tf_onebit.training.model_optimizers import inner_optimizer, knowing_batch_size
from tf_onebit.training.recorder import Recorder

# `tf.summary.scalar` would need TensorBoard to be installed where the job runs.
_SCALAR = tf.compat.v1.SummaryMetadata(plugin_data={"plugin_name": "scalars"}, data_class=1)


class Monitor(keras.callbacks.Callback):
    """Shows what the exchange of gradients sends, holds back, and takes.

    Adds to the logs of every batch and epoch:

    - `bytes_sent`: bytes that this worker sends per exchange: per step, or, with gradient
      accumulation, per update. With `BlockMomentum` also those of a block, per step of it.
    - `compression_ratio`: bytes of the same exchange in float32, over `bytes_sent`.
    - `residual_norm`: L2 norm of what this worker has not sent yet.

    and of threshold-sparse exchanges

    - `density`: the part of all values that exceeded the threshold `tau`.

    and of asynchronous ones

    - `staleness`: by how many steps the slowest worker is behind this one.
    - `delay`: in how many of its own steps this worker's updates reach the others, on average.

    The progress bar shows them, `History` keeps them, and so do TensorBoard's epoch logs.

    With `log_dir` they are also written as TensorBoard scalars, `exchange/bytes_sent` and so on,
    together with

    - `exchange/seconds`: for how long an exchange is under way, of any bucket.
    - `exchange/hidden_share`: the part of that in which local gradients were still being computed.
    - `exchange/work_seconds`: for how long something is encoded, added up or decoded.
    - `exchange/synchronization_seconds`: with `BlockMomentum`, what the end of a block takes.
    - `step/seconds`: what a step takes, or, with gradient accumulation, an update.
    - `step/predicted_seconds`: `predicted_step_seconds`.
    - `step/learning_rate`, and `step/global_batch_size` where it is known: of `ResizableBatches`,
      or by `set_global_batch_size`.
    - `residual_norm/<variable>`: that of each variable, at the end of an epoch only: it takes a
      pass over all that has not been sent.

    Warns, once in a `fit`, when the exchange costs more than it saves: when encoding, decoding and
    what is not hidden take longer than the bytes that are saved would, at the rate at which this
    job sends. `docs/monitor.md` tells more of all of these.

    Exchanges are timed in the graph, so that `fit` traces the training step anew for a Monitor; it
    computes the same bits. After `fit` the model has its old training step.

    Args:
        update_freq: number of batches between two readings. Reading waits for the step.
        log_dir: if given, every reading is also written there as TensorBoard scalars.
        predicted_step_seconds: what a step is expected to take, to be shown beside what it takes.
        timeline: if given, the path of a file for chrome://tracing or ui.perfetto.dev: the first
            100 steps, with what each bucket does. Each process writes one, with its rank before
            the ending: "trace.json" becomes "trace.0.json".

    Raises:
        ValueError: if `update_freq` or `predicted_step_seconds` is not positive, or the model's
            optimizer does not exchange gradients.

    Example:
        >>> import tf_onebit, tf_onebit.horovod as hvd
        >>> hvd.init()
        >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        >>> optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), tf_onebit.OneBit())
        >>> model.compile(optimizer, loss="mse")
        >>> data = tf.ones([32, 8]), tf.ones([32, 1])
        >>> history = model.fit(*data, verbose=0, callbacks=[Monitor()]).history
        >>> sorted(history)
        ['bytes_sent', 'compression_ratio', 'loss', 'residual_norm']
    """

    def __init__(self, update_freq=10, log_dir=None, predicted_step_seconds=None, timeline=None):
        super().__init__()
        if update_freq < 1:
            raise ValueError(
                "update_freq must be a positive number of batches. "
                f"Received: update_freq={update_freq}."
            )
        if predicted_step_seconds is not None and not predicted_step_seconds > 0:
            raise ValueError(
                "predicted_step_seconds must be a positive number of seconds. "
                f"Received: predicted_step_seconds={predicted_step_seconds}. Leave it out where "
                "there is no prediction."
            )
        self.update_freq = update_freq
        self.log_dir = log_dir
        self.predicted_step_seconds = predicted_step_seconds
        self.timeline = timeline
        self._recorder = Recorder()
        self._functions, self._is_recording = (None, None), False
        self._writer = None
        self._latest = {}
        self._next_reading = 0

    def on_train_begin(self, logs=None):
        exchange = self._gradient_exchange()
        if exchange is None:
            raise ValueError(
                "Monitor needs an optimizer that exchanges gradients. Received: optimizer="
                f"{self.model.optimizer!r}. Compile the model in the scope of a strategy of "
                "tf_onebit.distribute, or with tf_onebit.horovod.DistributedOptimizer."
            )
        if self.log_dir is not None:
            self._writer = tf.summary.create_file_writer(str(self.log_dir))
        self._worker = exchange.engine.members[exchange.engine.ranks[0]]
        self._timeline = None if self.timeline is None else Timeline(self.timeline, self._worker)
        frame = fit.find_fit(self.model)
        self._data = None if frame is None else frame.f_locals["x"]
        self._cost = ExchangeCost()
        self._times, self._synchronized = {}, 0
        self._batches, self._batches_seconds = 0, 0.0
        self._is_first = True
        if exchange.changes_gradients and not exchange.is_asynchronous:
            self._begin_recording()

    def _begin_recording(self):
        self._end_recording()  # of a `fit` that was interrupted
        self._gradient_exchange().record_times(self._recorder)
        function = self.model.train_function
        if function is not None and function is self._functions[0]:
            self.model.train_function = self._functions[1]  # as the last `fit` has traced it
        else:
            fit.trace_anew(self.model)
            self._functions = function, self.model.train_function
        self._is_recording = True

    def _end_recording(self):
        if not self._is_recording:
            return
        self._is_recording = False
        self._gradient_exchange().record_times(None)
        if self.model.train_function is self._functions[1]:
            self.model.train_function = self._functions[0]
        else:  # somebody has had it traced anew meanwhile
            fit.trace_anew(self.model)

    def on_epoch_begin(self, epoch, logs=None):
        self._next_reading = 0

    def on_train_batch_begin(self, batch, logs=None):
        self._first_batch, self._began = batch, time.time_ns()

    def on_train_batch_end(self, batch, logs=None):
        self._note_step(batch)
        # With `steps_per_execution` not every batch comes by.
        if batch >= self._next_reading:
            self._read()
            self._write()
            self._next_reading = batch + self.update_freq
        if logs is not None:
            logs.update(self._latest)

    def _note_step(self, batch):
        if fit.is_replaying(self.model):
            return
        if self._is_first:  # it has been traced
            self._is_first = False
            self._recorder.take()
            return
        ended = time.time_ns()
        blocks = self._gradient_exchange().blocks
        if blocks is not None and blocks.latest and blocks.latest[-1][0] > self._began:
            ended = blocks.latest[-1][0]  # by a callback that comes before this one
        self._batches += batch - self._first_batch + 1
        self._batches_seconds += (ended - self._began) / 1e9
        if self._timeline is not None and not self._timeline.is_full:
            self._timeline.add_step(self._began, ended, batch)

    def on_epoch_end(self, epoch, logs=None):
        self._read()
        self._write_scalars(self._residual_norms())
        if logs is not None:
            logs.update(self._latest)

    def on_train_end(self, logs=None):
        self._end_recording()
        self._write_timeline()
        self._data = None
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _gradient_exchange(self):
        return getattr(self.model.optimizer, "gradient_exchange", None)

    def _read(self):
        exchanges = self._gradient_exchange().built
        blocks = self._gradient_exchange().blocks
        bytes_sent = sum(exchange.bytes_sent() for exchange in exchanges)
        full_bytes = sum(exchange.full_precision_bytes() for exchange in exchanges)
        squares = sum(exchange.residual_sum_of_squares() for exchange in exchanges)
        self._read_times(bytes_sent, full_bytes)
        if blocks is not None:
            bytes_sent += blocks.bytes_sent()
            squares += blocks.residual_sum_of_squares()
            self._read_synchronizations(blocks)
        self._latest = {
            "bytes_sent": float(bytes_sent),
            "compression_ratio": full_bytes / bytes_sent if bytes_sent else 1.0,
            "residual_norm": math.sqrt(squares),
            **self._gradient_exchange().measures(),
        }

    def _read_times(self, bytes_sent, full_bytes):
        if self._batches:
            batches = inner_optimizer(self.model.optimizer).gradient_accumulation_steps or 1
            self._times["step/seconds"] = batches * self._batches_seconds / self._batches
            self._batches, self._batches_seconds = 0, 0.0
        spans = self._recorder.take()
        if self._timeline is not None:
            self._timeline.add_exchanges(spans)
            if self._timeline.is_full:
                self._write_timeline()
        times = ExchangeTimes.of({s: spans[s] for s in spans if s.worker == self._worker})
        if not times.updates:
            return
        self._times |= {
            "exchange/seconds": seconds(times.under_way) / times.updates,
            "exchange/hidden_share": times.hidden_share,
            "exchange/work_seconds": seconds(times.worked) / times.updates,
        }
        if self._cost is not None:
            self._cost.add(times, bytes_sent, full_bytes)
            if self._cost.warning is not None:
                warnings.warn(self._cost.warning, stacklevel=2)
                self._cost = None

    def _read_synchronizations(self, blocks):
        new = [interval for interval in blocks.latest if interval[0] > self._synchronized]
        if not new:
            return
        self._synchronized = new[-1][0]
        mean_seconds = sum(end - begin for begin, end in new) / len(new) / 1e9
        self._times["exchange/synchronization_seconds"] = mean_seconds
        if self._timeline is not None:
            self._timeline.add_synchronizations(new)

    def _settings(self):
        """What steps are made with: dictionary of scalars."""
        settings = {"step/learning_rate": float(self.model.optimizer.learning_rate)}
        if self.predicted_step_seconds is not None:
            settings["step/predicted_seconds"] = self.predicted_step_seconds
        known = [owner.global_batch_size for owner, _ in knowing_batch_size(self.model)]
        known.insert(0, getattr(self._data, "global_batch_size", None))
        known = [size for size in known if size is not None]
        if known:
            settings["step/global_batch_size"] = known[0]
        return settings

    def _residual_norms(self):
        """The norms of what has not been sent, by variable: dictionary of scalars."""
        if self._writer is None:
            return {}
        blocks = self._gradient_exchange().blocks
        parts = [*self._gradient_exchange().built, *([] if blocks is None else [blocks])]
        squares = {k: v for part in parts for k, v in part.residual_squares().items()}
        return {f"residual_norm/{name}": math.sqrt(square) for name, square in squares.items()}

    def _write(self):
        if self._writer is not None:
            latest = {f"exchange/{name}": value for name, value in self._latest.items()}
            self._write_scalars(latest | self._times | self._settings())

    def _write_scalars(self, scalars):
        if self._writer is not None:
            step = int(self.model.optimizer.iterations)
            summary = tf.compat.v1.Summary()
            for name, value in scalars.items():
                tensor = tf.make_tensor_proto(value, tf.float32)
                summary.value.add(tag=name, tensor=tensor, metadata=_SCALAR)
            # All at once: to write takes longer than all that there is to read.
            with self._writer.as_default():
                tf.summary.experimental.write_raw_pb(summary.SerializeToString(), step)

    def _write_timeline(self):
        if self._timeline is not None:
            self._timeline.write()
            self._timeline = None
