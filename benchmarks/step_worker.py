"""One worker of `step.py`: trains the papers' DNN on one batch and prints its measurements."""

import argparse
import contextlib
import json
import math
import os
import pathlib
import re
import resource
import time
import zlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("NUMPY_MADVISE_HUGEPAGE", "0")  # the pages of TensorFlow's tensors

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf
from yardsticks import make_yardsticks

from tf_onebit import Delayed, FullPrecision, OneBit, Threshold, WarmStart
from tf_onebit._layout import WORD_BYTES
from tf_onebit.collectives.engine import ProcessEngine
from tf_onebit.collectives.requests import AllGather, AllToAll
from tf_onebit.distribute import MultiWorkerMirroredStrategy
from tf_onebit.horovod import DistributedOptimizer

NUM_FEATURES = 429
HIDDEN = "7x2048"
NUM_CLASSES = 9304
SAMPLES_PER_WORKER = 64
TRIADS = 7
HOROVOD_COMPRESSION = {
    "horovod_fp32": hvd.Compression.none,
    "horovod_fp16": hvd.Compression.fp16,
}

# Exchanges of ours, and the names of their arguments.
SETTINGS = {
    "full_precision": (FullPrecision, ("bucket_bytes",)),
    "one_bit": (OneBit, ("max_column_size", "bucket_bytes", "moments", "residual_dtype")),
    "threshold": (Threshold, ("target_density", "coding", "bucket_bytes", "moments")),
}


def make_model(hidden=HIDDEN):
    """Returns the papers' DNN, 429 - 7x2048 - 9304, with the same weights on every worker.

    Args:
        hidden: str, such as "7x2048", for other numbers and sizes of hidden layers.
    """
    keras.utils.set_random_seed(0)
    count, units = map(int, hidden.split("x"))
    layers = [keras.layers.Dense(units, activation="sigmoid") for _ in range(count)]
    model = keras.Sequential([*layers, keras.layers.Dense(NUM_CLASSES)])
    model.build((None, NUM_FEATURES))
    return model


OPTIMIZERS = {
    "SGD": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "Adam": lambda: keras.optimizers.Adam(0.001),
}


def make_optimizer(name):
    """Returns an optimizer of Keras whose steps are of the usual size."""
    return OPTIMIZERS[name]()


def make_batch(rank):
    random = np.random.default_rng(rank)
    features = random.standard_normal((SAMPLES_PER_WORKER, NUM_FEATURES), np.float32)
    labels = random.integers(0, NUM_CLASSES, SAMPLES_PER_WORKER, np.int32)
    return tf.constant(features), tf.constant(labels)


def make_train_step(arguments, job, model, optimizer, batch):
    """Returns the training step of one row of the table.

    The rows differ only in the exchange of gradients: none, stock Horovod's
    `DistributedGradientTape`, our `DistributedOptimizer`, or the strategy that the step runs in.
    """
    features, labels = batch
    loss_function = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    variables = [variable.value for variable in model.trainable_variables]

    def train_step():
        with tf.GradientTape() as tape:
            loss = loss_function(labels, model(features, training=True)) / job.loss_divisor
        if arguments.exchange in HOROVOD_COMPRESSION:
            compression = HOROVOD_COMPRESSION[arguments.exchange]
            tape = hvd.DistributedGradientTape(tape, compression=compression)
        gradients = tape.gradient(loss, variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    return tf.function(lambda: job.run(train_step))


def training_step(model, optimizer, features, labels, parts=1):
    """Returns the function of a step over Horovod, which returns the loss.

    Args:
        model, optimizer: Keras model, and its wrapped optimizer.
        features, labels: the batch of every step.
        parts: parts of the batch, one after another. Activations of one part travel while another
            part is computed.
    """
    loss_function = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def train_step():
        with tf.GradientTape() as tape:
            outputs = [model(part, training=True) for part in tf.split(features, parts)]
            loss = loss_function(labels, tf.concat(outputs, axis=0))
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    return train_step


def weights_checksum(model):
    """Returns a number that differs if weights do."""
    checksum = 0
    for variable in model.trainable_variables:
        checksum = zlib.crc32(variable.numpy(), checksum)
    return checksum


def with_layout(exchange):
    """Returns the exchanges of a model's buckets that have a layout, like `OneBit`: list."""
    return [bucket for bucket in exchange.submodules if hasattr(bucket, "layout")]


def make_communication(gradient_exchange):
    """Returns a function that sends as much as a step of `OneBit`, and computes nothing."""

    def of_bucket(exchange):
        layout, name = exchange.layout, f"alone/{exchange.scope}"
        to_owners = [exchange.world_size, layout.worker_message_bytes // WORD_BYTES]
        words = layout.shard_message_bytes // WORD_BYTES
        received = yield AllToAll(_message(to_owners), f"{name}/all_to_all")
        shard = tf.repeat(received[:1, :words], exchange.aggregate_bits, axis=0)
        return (yield AllGather(shard, f"{name}/all_gather"))

    def communicate():
        engine = gradient_exchange.workers.engine
        answers = [
            engine.run_one(of_bucket(bucket))
            for exchange in gradient_exchange.built
            for bucket in with_layout(exchange)
        ]
        return tf.reduce_sum([answer[0, 0] for answer in answers])

    return tf.function(communicate, autograph=False)


def _message(shape):
    # It must not be a constant, which TensorFlow would send while it optimizes the graph.
    return tf.raw_ops.Empty(shape=shape, dtype=tf.int32, init=True)


def make_exchange(arguments):
    if arguments.exchange not in SETTINGS:
        return None
    make, names = SETTINGS[arguments.exchange]
    exchange = make(**{k: v for k, v in vars(arguments).items() if k in names and v is not None})
    if arguments.delay:
        exchange = Delayed(exchange, arguments.delay)
    if arguments.warm_start:
        exchange = WarmStart(exchange, arguments.warm_start)
    return exchange


class NobodyElse(ProcessEngine):
    """An engine that answers each request at once, with copies of this worker's own tensors."""

    def __init__(self, engine):
        self.world_size, self.ranks, self.place = engine.world_size, engine.ranks, engine.place

    def _all_to_all(self, tensor, name):
        return tf.stack([tensor[self.ranks[0]]] * self.world_size)

    def _all_gather(self, request):
        return tf.concat([request.tensor] * self.world_size, axis=0)

    def _all_reduce(self, request):
        return [self.world_size * request.scale * tensor for tensor in request.tensors]


class HorovodJob:
    """A Horovod job.

    It runs even if nothing is exchanged, so that its thread is there in every row.
    """

    loss_divisor = 1

    def __init__(self, exchange):
        hvd.init()
        self._exchange = exchange
        self.rank, self.num_workers = hvd.rank(), hvd.size()
        self.scope, self.run = contextlib.nullcontext, lambda step: step()

    def distributed(self, optimizer):
        if self._exchange is None:
            return optimizer
        return DistributedOptimizer(optimizer, exchange=self._exchange)

    def wait_for_all(self):
        hvd.allreduce(tf.zeros([]), name="all_ready")

    def end(self):
        hvd.shutdown()


class TensorFlowJob:
    """A job that runs steps in a strategy: ours, or TensorFlow's own."""

    def __init__(self, exchange, stock):
        if stock:
            self._strategy = tf.distribute.MultiWorkerMirroredStrategy()
        else:
            self._strategy = MultiWorkerMirroredStrategy(exchange)
        self.rank = self._strategy.cluster_resolver.task_id
        self.num_workers = self.loss_divisor = self._strategy.num_replicas_in_sync
        self.scope, self.run = self._strategy.scope, self._strategy.run

    def distributed(self, optimizer):
        return optimizer  # its scope has done it

    def wait_for_all(self):
        self._strategy.reduce("SUM", tf.zeros([]), axis=None)

    def end(self):
        pass


def sent_bytes(optimizer, num_workers):
    """Returns the bytes that this worker sends per step by kind, by the exchange's arithmetic."""
    total = levels = full_precision = 0
    for exchange in optimizer.gradient_exchange.built:
        total += exchange.bytes_sent()
        for bucket in with_layout(exchange):
            # Both stages have two float32 levels per column and bit. Each column goes to all but
            # its owner.
            of_stages = (1 + bucket.aggregate_bits) * 8 * bucket.layout.num_columns
            levels += of_stages * (num_workers - 1) / num_workers
            full_precision += (num_workers - 1) * 4 * bucket.layout.plain_size
    if not levels:
        return {"updates": total}
    codes = total - levels - full_precision  # with the padding of shards to equal length
    return {"codes": codes, "levels": levels, "full precision": full_precision}


def triad_seconds(num_values):
    """Returns the times of a = b + c over `num_values` values: list of floats."""
    triad = make_yardsticks(num_values)["triad"]
    triad()
    times = [time.perf_counter()]
    for _ in range(TRIADS):
        triad()
        times.append(time.perf_counter())
    return np.diff(times).tolist()


def peak_memory_bytes():
    status = pathlib.Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=["horovod", "tensorflow"], default="horovod")
    parser.add_argument("--exchange", required=True)
    parser.add_argument("--interface", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--inter-op-threads", type=int, required=True)
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="SGD")
    parser.add_argument("--moments", choices=["local", "after"])
    parser.add_argument("--max-column-size", type=int)
    parser.add_argument("--residual-dtype")
    parser.add_argument("--bucket-bytes", type=int)
    parser.add_argument("--warm-start", type=int, default=0)
    parser.add_argument("--delay", type=int, default=0, help="steps by which gradients are late")
    parser.add_argument(
        "--send-nothing", action="store_true", help="encode and decode all the same"
    )
    parser.add_argument(
        "--compute-nothing", action="store_true", help="send what a step of OneBit sends"
    )
    parser.add_argument("--target-density", type=float)
    parser.add_argument("--coding", default="packed")
    parser.add_argument("--warm-up-steps", type=int, default=3)
    arguments = parser.parse_args()

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(arguments.inter_op_threads)

    exchange = make_exchange(arguments)
    if arguments.engine == "horovod":
        job = HorovodJob(exchange)
    else:
        job = TensorFlowJob(exchange, stock=arguments.exchange == "stock")
    counter = pathlib.Path(f"/sys/class/net/{arguments.interface}/statistics/tx_bytes")
    with job.scope():
        model = make_model()
        optimizer = job.distributed(make_optimizer(arguments.optimizer))
        optimizer.build(model.trainable_variables)
        if arguments.send_nothing:
            gradient_exchange = optimizer.gradient_exchange
            gradient_exchange.workers.group = NobodyElse(gradient_exchange.workers.engine)
    train_step = make_train_step(arguments, job, model, optimizer, make_batch(job.rank))
    if arguments.compute_nothing:
        train_step().numpy()  # this builds the exchange
        train_step = make_communication(optimizer.gradient_exchange)
    for _ in range(arguments.warm_up_steps):
        train_step().numpy()

    job.wait_for_all()
    sent_before = int(counter.read_text())
    step_seconds, losses = [], []
    before = resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(arguments.steps):
        start = time.perf_counter()
        losses.append(float(train_step().numpy()))
        step_seconds.append(time.perf_counter() - start)
    after = resource.getrusage(resource.RUSAGE_SELF)
    system_seconds = after.ru_stime - before.ru_stime
    processor_seconds = after.ru_utime - before.ru_utime + system_seconds
    job.wait_for_all()
    interface_bytes = int(counter.read_text()) - sent_before
    peak_bytes = peak_memory_bytes()
    # All workers do this at the same time, like the steps.
    triads = triad_seconds(sum(math.prod(v.shape) for v in model.trainable_variables))

    result = {
        "step_seconds": step_seconds,
        "triad_seconds": triads,
        "processor_seconds_per_step": processor_seconds / arguments.steps,
        "system_seconds_per_step": system_seconds / arguments.steps,
        "losses": losses,
        "interface_bytes_per_step": interface_bytes / arguments.steps,
        "peak_memory_bytes": peak_bytes,
        "weights_checksum": weights_checksum(model),
        "measures": optimizer.gradient_exchange.metrics() if exchange is not None else {},
        "sent_bytes": sent_bytes(optimizer, job.num_workers) if exchange is not None else {},
        "tensor_shapes": [tuple(variable.shape) for variable in model.trainable_variables],
    }
    print(json.dumps(result))
    job.end()


if __name__ == "__main__":
    main()
