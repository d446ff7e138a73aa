"""Data-parallel training on the speech task, all workers in one program.

After an exchange all workers have the same gradients. So there is one model for all of them. Each
worker has its own part of every minibatch, and its own residual.
"""

import dataclasses
import pathlib
import sys
import time

import keras
import numpy as np
import tensorflow as tf

from tf_onebit import Threshold, ops
from tf_onebit._training.building import build
from tf_onebit.collectives.lockstep import LockstepEngine
from tf_onebit.collectives.requests import AllGather, tap_requests
from tf_onebit.exchanges import GradientSpec
from tf_onebit.ops import threshold as message

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "examples" / "speech"))
import dataset  # noqa: E402
from batches import FrameBatches  # noqa: E402
from model import acoustic_model  # noqa: E402
from train import EVALUATION_BATCH_SIZE  # noqa: E402
from updates import FINAL_LEARNING_RATE, WARM_UP  # noqa: E402

# All runs of a seed have the same first part: one node in full precision. In the paper, the rows of
# a table also have the first of ten epochs in common, with 10 nodes.
COMMON_START = WARM_UP
WORD_BITS = 32
# More than any model has. So there is one message per worker and step, and one tau, as in the
# paper.
ONE_BUCKET_BYTES = 2**40
# Figures of the messages of a step, averaged over the workers. Words are counted on the wire. Bits
# count only the updates, in coded form.
FIGURES = ("updates", "message_words", "golomb_rice_bits", "tau")


@dataclasses.dataclass(frozen=True)
class Run:
    """The settings of one training.

    Attributes:
        hours: float. Speech to train on, in one pass.
        depth, width: int. Hidden layers, and units in each.
        global_batch_size: int. Frames per step. Each worker has an equal part of them.
        learning_rate: float. The highest of the schedule of `examples/speech/train.py`.
        seed: int. Seed of the weights and the order of frames.
        workers: int. Number of simulated workers.
        tau, target_density: as in `Threshold`. With neither, one node trains in full precision.
    """

    hours: float
    depth: int
    width: int
    global_batch_size: int
    learning_rate: float
    seed: int
    workers: int = 1
    tau: float | None = None
    target_density: float | None = None

    @property
    def full_precision(self):
        """The settings of the run that this one is compared with."""
        return dataclasses.replace(self, workers=1, tau=None, target_density=None)

    @property
    def name(self):
        network = f"{self.depth}x{self.width}, seed {self.seed}"
        if self == self.full_precision:
            return f"{network}, full precision"
        sends = f"1/{1 / self.target_density:g}" if self.tau is None else f"tau {self.tau:.4g}"
        return f"{network}, {self.workers} workers, {sends}"


def train(run):
    """Trains, and returns results and mean figures of the messages as a dict of plain values."""
    started = time.monotonic()
    keras.backend.clear_session()
    keras.utils.set_random_seed(run.seed)
    training_split, held_out_split, targets = dataset.load(dataset.Settings(hours=run.hours))
    training = FrameBatches(training_split, run.global_batch_size, 0, 1, shuffle_seed=run.seed)
    held_out = FrameBatches(held_out_split, EVALUATION_BATCH_SIZE, 0, 1)
    input_shape = training[0][0].shape[1:]
    model = acoustic_model(input_shape, len(targets), run.depth, run.width, "relu")
    model.compile(
        optimizer=keras.optimizers.SGD(learning_rates(run.learning_rate, len(training))),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.optimizer.build(model.trainable_variables)

    start = round(COMMON_START * len(training))
    alone = _step_of_one_node(model)
    for i in range(start):
        alone(*training[i])
    figures = []
    step = alone if run == run.full_precision else _step_of_workers(model, run)
    for i in range(start, len(training)):
        figures.append(step(*training[i]).numpy())
    cross_entropy, accuracy = model.evaluate(held_out, verbose=0)
    return {
        "steps": len(training),
        "weights": model.count_params(),
        "accuracy_percent": 100 * accuracy,
        "cross_entropy": cross_entropy,
        **_summary(np.array(figures), model.count_params()),
        "seconds": time.monotonic() - started,
    }


def learning_rates(highest, steps):
    warm_up_steps = round(WARM_UP * steps)
    return keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=0.0,
        warmup_target=highest,
        warmup_steps=warm_up_steps,
        decay_steps=steps - warm_up_steps,
        alpha=FINAL_LEARNING_RATE,
    )


def _gradients(model, frames, states):
    with tf.GradientTape() as tape:
        loss = model.loss(states, model(frames, training=True))
    return tape.gradient(loss, model.trainable_variables)


def _update(model, gradients):
    model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


def _step_of_one_node(model):
    @tf.function
    def step(frames, states):
        _update(model, _gradients(model, frames, states))
        return tf.zeros([len(FIGURES)], tf.float64)

    return step


def _step_of_workers(model, run):
    engine = LockstepEngine(["CPU:0"] * run.workers)
    specs = [GradientSpec.of(tf.convert_to_tensor(v), v) for v in model.trainable_variables]
    threshold = Threshold(run.tau, run.target_density, bucket_bytes=ONE_BUCKET_BYTES)
    # A `GradientExchange` would leave out the exchange for a single worker.
    exchanges = build(threshold, specs, "simulation", engine)

    @tf.function
    def step(frames, states):
        parts = zip(tf.split(frames, run.workers), tf.split(states, run.workers), strict=True)
        messages = []
        results = engine.run(
            overheard(exchange.run(_gradients(model, *part), 1 / run.workers), messages)
            for exchange, part in zip(exchanges, parts, strict=True)
        )
        (gradients, _), *_ = results  # of worker 0: all others have the same
        _update(model, gradients)
        return measure(tf.concat(messages, axis=0), model.count_params())

    return step


def overheard(generator, messages):
    """Runs the generator of an exchange, and appends tensors that it gathers to `messages`."""

    def note(request):
        if isinstance(request, AllGather):
            messages.append(request.tensor)

    return tap_requests(generator, note)


def measure(messages, size):
    """Returns the means over the workers of their `FIGURES` in one step.

    Args:
        messages: int32 `[workers, 1, words]`, packed.
        size: int. Number of values of the gradients.
    """
    coded = ops.golomb_rice_encode(messages, [size])
    figures = [
        messages[:, 0, message.COUNT],
        tf.shape(messages)[2:],
        WORD_BITS * (coded[:, 0, message.WORDS] - message.HEADER_WORDS),
        tf.bitcast(messages[:, 0, message.STEP], tf.float32),
    ]
    return tf.stack([tf.reduce_mean(tf.cast(figure, tf.float64)) for figure in figures])


def _summary(figures, weights):
    """Returns means over the steps, and over tenths of them, of an array `[steps, 4]`."""
    mean = dict(zip(FIGURES, figures.mean(axis=0).tolist(), strict=True))
    if not mean["updates"]:  # in full precision, or if no value exceeded tau
        return mean
    tenths = [part.mean(axis=0).tolist() for part in np.array_split(figures, 10)]
    return {
        **mean,
        # As in the paper: one word for each value of the gradient, and one for each update.
        "compression_ratio": weights / mean["updates"],
        "compression_ratio_on_the_wire": weights / mean["message_words"],
        "bits_per_update": mean["golomb_rice_bits"] / mean["updates"],
        "tenths": [dict(zip(FIGURES, tenth, strict=True)) for tenth in tenths],
    }
