"""One training with an optimizer, and a way to exchange what workers learn."""

import dataclasses
import functools
import math
import pathlib
import time
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from accuracy_tasks import TASKS
from adam_exchanges import OneBitAdam, SharedSquares
from intervals import TOLERANCE_POINTS
from peer_exchanges import DeepGradientCompression, PowerSGD

import tf_onebit
from tf_onebit import OneBit, Threshold, WarmStart

WARM_PART = 0.1  # of the steps exchange in full precision
STEPS_PER_CALL = 26

OPTIMIZERS = {
    "sgd": lambda rate: keras.optimizers.SGD(rate),
    "momentum": lambda rate: keras.optimizers.SGD(rate, momentum=0.9),
    "adam": lambda rate: keras.optimizers.Adam(rate),
    "adamw": lambda rate: keras.optimizers.AdamW(rate),
}


@dataclasses.dataclass(frozen=True)
class Row:
    """A way to exchange what workers learn.

    Attributes:
        exchange: function from the number of warm-up steps to an exchange.
        optimizers: names of the optimizers that it works with, or that it stands for.
        has_moments: whether it averages gradients itself. Plain SGD then uses what it returns.
        most_points, most_nats: what we claim that it loses at most, or None.
    """

    exchange: Callable
    optimizers: tuple = tuple(OPTIMIZERS)
    has_moments: bool = False
    most_points: float | None = None
    most_nats: float | None = None


def _warmed_up(make, *arguments, **row):
    return Row(lambda steps: WarmStart(make(*arguments), steps=steps), **row)


EXCHANGES = {
    "full precision": Row(lambda steps: None),
    "1-bit": _warmed_up(OneBit, most_points=TOLERANCE_POINTS, most_nats=0.01),
    "1-bit, moments after": _warmed_up(lambda: OneBit(moments="after")),
    "1-bit, bfloat16 residuals": _warmed_up(lambda: OneBit(residual_dtype="bfloat16")),
    "threshold": _warmed_up(
        lambda: Threshold(target_density=1e-3), most_points=0.5, most_nats=0.02
    ),
    "threshold 1/100": _warmed_up(
        lambda: Threshold(target_density=1e-2), most_points=TOLERANCE_POINTS, most_nats=0.01
    ),
    "threshold, moments after": _warmed_up(lambda: Threshold(target_density=1e-3, moments="after")),
    "PowerSGD, rank 1": _warmed_up(PowerSGD, 1, optimizers=("sgd", "momentum")),
    "PowerSGD, rank 4": _warmed_up(PowerSGD, 4, optimizers=("sgd", "momentum")),
    "deep gradient compression": Row(
        DeepGradientCompression, optimizers=("momentum",), has_moments=True
    ),
    "1-bit, shared squares": _warmed_up(SharedSquares, optimizers=("adam",), has_moments=True),
    "1-bit Adam": _warmed_up(OneBitAdam, optimizers=("adam",), has_moments=True),
}


@dataclasses.dataclass(frozen=True)
class Run:
    """The settings of one training.

    Attributes:
        task, optimizer, exchange: keys of `TASKS`, `OPTIMIZERS` and `EXCHANGES`.
        rate: the first learning rate. It falls to zero as a cosine.
        seed: seed of the weights and of the order of samples.
        workers: number of devices that train together.
        steps: number of steps in an epoch.
        epochs: number of epochs.
        data: folder of the task's files; None for random data.
    """

    task: str
    optimizer: str
    exchange: str
    rate: float
    seed: int
    workers: int
    steps: int
    epochs: int
    data: pathlib.Path | None


@functools.cache
def load(task, folder):
    """Returns the arrays of a task, random ones without a folder."""
    return TASKS[task].load(folder) if folder else TASKS[task].load_random()


def train(run):
    """Trains a model. Returns its held-out loss and accuracy, bytes per step, and seconds.

    If training diverges, the loss is infinite.
    """
    start = time.perf_counter()
    task, row = TASKS[run.task], EXCHANGES[run.exchange]
    x, labels, held_out, held_out_labels = load(run.task, run.data)
    keras.utils.set_random_seed(run.seed)
    total = run.steps * run.epochs
    exchange = row.exchange(max(1, round(WARM_PART * total)))
    strategy = tf_onebit.distribute.MirroredStrategy(
        exchange, [f"CPU:{worker}" for worker in range(run.workers)]
    )
    with strategy.scope():
        model = keras.Sequential(task.layers())
        schedule = keras.optimizers.schedules.CosineDecay(run.rate, total)
        model.compile(
            OPTIMIZERS["sgd" if row.has_moments else run.optimizer](schedule),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            steps_per_execution=min(STEPS_PER_CALL, run.steps),
        )
    size = task.batch_size
    chosen = np.random.default_rng(run.seed).permutation(len(x))[: run.steps * size]
    monitor = tf_onebit.callbacks.Monitor()
    try:
        history = model.fit(
            x[chosen], labels[chosen], size, epochs=run.epochs, verbose=0, callbacks=[monitor]
        ).history
        loss, accuracy = model.evaluate(held_out, held_out_labels, 8 * size, verbose=0)
        result = {
            "loss": loss,
            "accuracy": 100 * accuracy,
            "bytes": history["bytes_sent"][-1],
        }
    except tf.errors.InvalidArgumentError as error:
        if "must be finite" not in error.message:
            raise
        result = {"loss": math.inf, "accuracy": 0.0, "bytes": math.nan}
    keras.backend.clear_session()
    return result | {"seconds": time.perf_counter() - start}
