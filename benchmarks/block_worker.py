"""One worker of `block.py`: trains the papers' DNN, in blocks and alone by turns."""

import argparse
import contextlib
import json
import os
import pathlib
import threading
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import horovod.tensorflow as hvd
import keras
import tensorflow as tf
from step_worker import make_batch, make_model

import tf_onebit
from tf_onebit.horovod import DistributedOptimizer

EXCHANGES = {
    "full precision": tf_onebit.FullPrecision,
    "1-bit": tf_onebit.OneBit,
    "top-k 1/16": lambda: tf_onebit.Threshold(
        target_density=1 / 16, coding="golomb_rice", selection="top_k", residual_decay=0.95
    ),
}
OPTIMIZERS = {
    "SGD": lambda: keras.optimizers.SGD(0.01),
    "Adam": lambda: tf_onebit.optimizers.Adam(1e-5, beta_1=0.5),
}
ALL_REDUCES = 5
SAMPLE_SECONDS = 0.1


class Traffic(keras.callbacks.Callback):
    """A callback that measures the highest rate at which an interface sends in an epoch's steps.

    Put it first, because other callbacks may send at the end of the epoch.

    Args:
        interface: name of the interface.

    Attributes:
        peak_bits_per_second: highest rate over a tenth of a second.
    """

    def __init__(self, interface):
        super().__init__()
        self._file = pathlib.Path(f"/sys/class/net/{interface}/statistics/tx_bytes")
        self._ended = threading.Event()
        self.peak_bits_per_second = 0.0

    def on_epoch_begin(self, epoch, logs=None):
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def on_epoch_end(self, epoch, logs=None):
        self._ended.set()
        self._thread.join()

    def _watch(self):
        time_before, sent_before = time.perf_counter(), int(self._file.read_text())
        while not self._ended.wait(SAMPLE_SECONDS):
            now, sent = time.perf_counter(), int(self._file.read_text())
            rate = 8 * (sent - sent_before) / (now - time_before)
            self.peak_bits_per_second = max(self.peak_bits_per_second, rate)
            time_before, sent_before = now, sent


class Stretch(keras.callbacks.Callback):
    """A callback that measures the time of all steps of a `fit`, with the callbacks before it."""

    def __init__(self):
        super().__init__()
        self.start = None

    def on_train_batch_begin(self, batch, logs=None):
        if self.start is None:
            wait_for_all()
            self.start = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self.seconds = time.perf_counter() - self.start


class BlockEnds(keras.callbacks.Callback):
    """A callback that notes when it is called after the last step of each block.

    Args:
        sync_period: number of steps in a block.
        waits: whether workers wait for each other first.
    """

    def __init__(self, sync_period, waits):
        super().__init__()
        self._sync_period = sync_period
        self._waits = waits
        self.times = []

    def on_train_batch_end(self, batch, logs=None):
        if (batch + 1) % self._sync_period == 0:
            if self._waits:
                wait_for_all()
            self.times.append(time.perf_counter())


@contextlib.contextmanager
def kept(variables):
    """Undoes what the context does. Workers would otherwise have to take over rank 0's state."""
    values = [variable.numpy() for variable in variables]
    yield
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def wait_for_all():
    hvd.allreduce(tf.zeros([]), name="all_ready")


def all_reduce_seconds(variables):
    """Returns the times of Horovod's own all-reduce, of as many bytes as a block sends."""

    @tf.function
    def all_reduce():
        values = [variable.read_value() for variable in variables]
        return [hvd.allreduce(v, op=hvd.Sum, name=f"sum_{i}") for i, v in enumerate(values)]

    all_reduce()
    seconds = []
    for _ in range(ALL_REDUCES):
        wait_for_all()
        start = time.perf_counter()
        all_reduce()
        seconds.append(time.perf_counter() - start)
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--optimizer", choices=OPTIMIZERS, required=True)
    parser.add_argument("--exchange", choices=EXCHANGES, required=True)
    parser.add_argument("--sync-period", type=int, required=True)
    parser.add_argument("--blocks", type=int, required=True, help="in each turn")
    parser.add_argument("--turns", type=int, required=True)
    parser.add_argument("--fragments", type=int, default=1)
    parser.add_argument("--overlap", type=int, default=0, help="steps")
    parser.add_argument("--interface", required=True)
    parser.add_argument("--inter-op-threads", type=int, default=2)
    arguments = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(arguments.inter_op_threads)
    hvd.init()

    model = make_model()
    optimizer = DistributedOptimizer(OPTIMIZERS[arguments.optimizer](), tf_onebit.Local())
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=False)
    data = tf.data.Dataset.from_tensors(make_batch(hvd.rank())).repeat()
    blocks = tf_onebit.callbacks.BlockMomentum(
        arguments.sync_period,
        exchange=EXCHANGES[arguments.exchange](),
        fragments=arguments.fragments,
        overlap=arguments.overlap,
    )

    def fit(steps, *callbacks):
        stretch = Stretch()
        history = model.fit(data, steps_per_epoch=steps, verbose=0, callbacks=[*callbacks, stretch])
        return stretch.seconds, history.history["loss"]

    steps = arguments.sync_period * arguments.blocks
    optimizer.build(model.trainable_variables)
    with kept([*model.variables, *optimizer.variables]):
        fit(3)
    fit(arguments.sync_period, blocks)  # builds the exchange
    alone, together, synchronizations, losses, peaks = [], [], [], [], []
    for _ in range(arguments.turns):
        with kept([*model.variables, *optimizer.variables]):
            seconds, _ = fit(steps)
        alone.append(seconds)
        ends = max(1, arguments.sync_period // arguments.fragments)
        before = BlockEnds(ends, waits=not arguments.overlap)
        after = BlockEnds(ends, waits=False)
        traffic = Traffic(arguments.interface)
        seconds, loss = fit(steps, traffic, before, blocks, after)
        peaks.append(traffic.peak_bits_per_second)
        together.append(seconds)
        losses += loss
        pairs = zip(before.times, after.times, strict=True)
        synchronizations += [end - start for start, end in pairs]
    result = {
        "alone_seconds": alone,
        "together_seconds": together,
        "synchronization_seconds": synchronizations,
        "peak_bits_per_second": max(peaks),
        "losses": losses,
        "weights_checksum": float(sum(tf.reduce_sum(v) for v in model.trainable_variables)),
    }
    if arguments.exchange == "full precision":
        exchanged = [v.value for v in model.trainable_variables]
        moments = getattr(optimizer, "moments", [])
        exchanged += [v.value for moment in moments for v in moment.variables]
        result["all_reduce_seconds"] = all_reduce_seconds(exchanged)
    print(json.dumps(result))
    hvd.shutdown()


if __name__ == "__main__":
    main()
