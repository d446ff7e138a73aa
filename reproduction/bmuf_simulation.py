"""Training in blocks on the speech task, all workers in one program.

Each worker has a Keras model and optimizer of its own, which `BlockSynchronization` synchronizes as
in a job. Another model, the workbench, is compiled and makes their steps. For a block it takes over
a worker's variables. Compiling a model for each worker would take longer.
"""

import dataclasses
import itertools
import math
import time

import keras
import numpy as np
import simulate  # must come before the modules of examples/speech, because it adds their folder
import tensorflow as tf
from batches import FrameBatches
from bmuf_run import BLOCK_MOMENTUM, FULL_PRECISION, ONE_BIT
from dataset import CONTEXT_FRAMES
from targets import NO_TARGET

from tf_onebit import FullPrecision, OneBit, Threshold, optimizers
from tf_onebit._bmuf.equations import BlockFilter
from tf_onebit._bmuf.fragments import end_of_turn
from tf_onebit._bmuf.meeting import End
from tf_onebit._bmuf.synchronization import BlockSynchronization
from tf_onebit._bmuf.variables import block_variables
from tf_onebit.collectives.lockstep import LockstepEngine

STEPS_AT_ONCE = 32  # of one node, in one call
FRAMES_AT_ONCE = 2**14
CHECKED_MINIBATCHES = 640
_WINDOW = tf.range(-CONTEXT_FRAMES, CONTEXT_FRAMES + 1)


class _BySamples(keras.optimizers.schedules.LearningRateSchedule):
    """One node's learning rate at the same number of samples, times a factor."""

    def __init__(self, run):
        self._run = run
        self._of_one_node = simulate.learning_rates(run.learning_rate, run.start + run.minibatches)

    def __call__(self, step):
        steps = tf.cast(step, tf.float32) - self._run.start
        minibatches = self._run.start + self._run.workers * steps
        return self._run.learning_rate_factor * self._of_one_node(minibatches)


class Worker:
    """A model with its optimizer.

    Attributes:
        model: Keras model, compiled.
        variables: list of `tf.Variable` that a step changes.
    """

    def __init__(self, run, data):
        input_shape = (_WINDOW.shape[0], data.frames.shape[1])
        self.model = simulate.acoustic_model(
            input_shape, data.target_count, run.depth, run.width, "relu"
        )
        self.model.compile(
            optimizer=optimizers.Adam(_BySamples(run), beta_1=run.beta_1),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        optimizer = self.model.optimizer
        optimizer.build(self.model.trainable_variables)
        self.variables = [v.value for v in [*self.model.variables, *optimizer.variables]]


class Workbench(Worker):
    """The worker that makes the steps, its own or in place of another worker."""

    def __init__(self, run, data):
        super().__init__(run, data)
        self._data = data
        # XLA joins an optimizer's many small operations, but is slow with large matrices.
        compiles = run.workers == 1 or run.sync_period > 0
        self._steps = tf.function(self._make_steps, jit_compile=compiles)

    @tf.function
    def steps(self, rows):
        """Makes steps with the frames in these rows: an int32 tensor `[steps, frames]`."""
        frames = tf.gather(self._data.frames, rows[:, :, None] + _WINDOW)
        self._steps(frames, tf.gather(self._data.states, rows))

    @tf.function
    def steps_of(self, variables, rows):
        """Makes the same steps for a worker with these variables."""
        assign(self.variables, variables)
        self.steps(rows)
        assign(variables, self.variables)

    def _make_steps(self, frames, states):
        weights = self.model.trainable_variables
        for step in tf.range(tf.shape(states)[0]):
            with tf.GradientTape() as tape:
                loss = self.model.loss(states[step], self.model(frames[step], training=True))
            self.model.optimizer.apply(tape.gradient(loss, weights), weights)


def assign(variables, values):
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


class Data:
    """Frames to train on, and their order.

    Attributes:
        frames, states: tensors `[rows, features]`, `[rows]`.
        target_count: int.
        order: int32 array `[minibatches, frames of a minibatch]` of rows, for all of a run.
        held_out: `FrameBatches`.
    """

    def __init__(self, run):
        settings = simulate.dataset.Settings(hours=run.hours, target_count=run.targets)
        training, held_out, targets = simulate.dataset.load(settings)
        self.frames, self.states = tf.constant(training.frames), tf.constant(training.targets)
        self.target_count = len(targets)
        self.held_out = FrameBatches(held_out, simulate.EVALUATION_BATCH_SIZE, 0, 1)
        rows = np.flatnonzero(training.targets != NO_TARGET).astype(np.int32)
        in_a_pass = len(rows) // run.frames
        minibatches = run.start + run.minibatches
        passes = [
            np.random.default_rng([run.seed, i]).permutation(rows)[: in_a_pass * run.frames]
            for i in range(math.ceil(minibatches / in_a_pass))
        ]
        self.order = np.concatenate(passes)[: minibatches * run.frames].reshape(-1, run.frames)


def trained(run, data):
    """Trains, and returns the model, and the bytes that a worker sends for blocks, per step.

    Raises:
        InvalidArgumentError: if a worker's weights are no longer finite.
    """
    keras.backend.clear_session()
    keras.utils.set_random_seed(run.seed)
    begin = Workbench(run.alone, data)
    _train_alone(begin, data.order[: run.start])
    bench = Workbench(run, data)
    assign(bench.variables, begin.variables)
    rest = data.order[run.start :].reshape(-1, run.workers, run.frames)  # by step and worker
    sent_bytes = 0.0
    if run.sync_period:
        sent_bytes = _train_in_blocks(run, data, bench, rest)
    else:
        _train_alone(bench, rest.reshape(len(rest), -1))
    return bench.model, sent_bytes


def _train_alone(bench, order):
    at_once = min(STEPS_AT_ONCE, max(1, FRAMES_AT_ONCE // order.shape[1]))
    for first in range(0, len(order), at_once):
        bench.steps(tf.constant(order[first : first + at_once]))


def _train_in_blocks(run, data, bench, order):
    workers = [Worker(run, data) for _ in range(run.workers)]
    for worker in workers:
        assign(worker.variables, bench.variables)
    # `BlockMomentum` does the same with a compressing exchange.
    exchange, outer = EXCHANGES[run.exchange](run), OUTER[run.outer]
    keeps = run.sent_moments == "none" or (exchange.compresses and run.sent_moments == "default")
    blocks = BlockSynchronization(
        LockstepEngine(["CPU:0"] * run.workers),
        BlockFilter(0.0 if outer else 1 - 1 / run.workers),
        exchange,
        [
            block_variables(
                worker.model,
                run.moments,
                compresses=keeps,
                weights_alone=run.fragments > 1 or run.overlap > 0,
            )
            for worker in workers
        ],
        corrects_moments=run.moments == "bmuf_adam",
        template_of=_template_of(run),
        fragments=run.fragments,
        nominal_steps=run.sync_period if run.overlap else None,
        outer_optimizer=outer and outer(),
    )
    blocks.train()
    turns = range(run.fragments)
    ends = [end_of_turn(turn, run.sync_period, run.fragments) for turn in turns]
    stops = sorted({*ends, *((end + run.overlap) % run.sync_period for end in ends)} - {0})
    for first in range(0, len(order), run.sync_period):
        for begin, end in itertools.pairwise([0, *stops]):
            rows = tf.constant(order[first + begin : first + end])
            for worker, own_rows in zip(workers, tf.unstack(rows, axis=1), strict=True):
                bench.steps_of(worker.variables, own_rows)
            blocks.count_batches(end - begin)
            blocks.finish(run.overlap)
            if end in ends and run.overlap:
                blocks.start()
            elif end in ends:
                blocks.synchronize()
    blocks.end(End.EPOCH)
    with blocks.view():
        assign(bench.variables, workers[0].variables)
    return blocks.bytes_sent()


def _one_bit(run):
    least = min(run.column_size, OneBit().min_column_size)
    return OneBit(min_column_size=least, max_column_size=run.column_size)


def _sparse(part, **options):
    return lambda run: Threshold(target_density=1 / part, coding="golomb_rice", **options)


_LARGEST = {"selection": "top_k", "residual_decay": 0.95}
EXCHANGES = {
    FULL_PRECISION: lambda run: FullPrecision(),
    ONE_BIT: _one_bit,
    "threshold 1/16": _sparse(16),
    "top-k 1/16": _sparse(16, **_LARGEST),
    "top-k 1/64": _sparse(64, **_LARGEST),
}
# Outer optimizers; None is block momentum.
OUTER = {
    BLOCK_MOMENTUM: None,
    "DiLoCo": lambda: keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True),
    "SparseLoCo": lambda: keras.optimizers.SGD(1.0),
}


class BFloat16(FullPrecision):
    """An exchange of half the bytes, with the same relative precision for all values."""

    def compress(self, gradient):
        return tf.cast(gradient, tf.bfloat16), gradient.dtype

    def decompress(self, total, context):
        return tf.cast(total, context)


def _template_of(run):
    """Returns the exchange of each moment, or None."""
    return {
        "default": None,
        "none": None,
        "full": None,
        "bfloat16": lambda moment: BFloat16() if moment.of_squares else OneBit(),
        "one_bit": lambda moment: OneBit(),
    }[run.sent_moments]


def check(run):
    """Tells whether a worker in blocks, without block momentum, ends with the bits of one alone."""
    run = dataclasses.replace(run.alone, minibatches=CHECKED_MINIBATCHES)
    data = Data(run)
    alone, in_blocks = (
        [v.numpy() for v in trained(one, data)[0].trainable_variables]
        for one in (run, dataclasses.replace(run, sync_period=8))
    )
    return all(np.array_equal(a, b) for a, b in zip(alone, in_blocks, strict=True))


def train(run):
    """Trains, and returns results as a dict of plain values."""
    started = time.monotonic()
    data = Data(run)
    sent_bytes = math.nan
    try:
        model, sent_bytes = trained(run, data)
        cross_entropy, accuracy = model.evaluate(data.held_out, verbose=0)
    except tf.errors.InvalidArgumentError as error:
        if "must be finite" not in error.message:
            raise
        cross_entropy = math.nan
    finite = math.isfinite(cross_entropy)
    return {
        "accuracy_percent": 100 * accuracy if finite else 0.0,
        "cross_entropy": cross_entropy if finite else math.inf,
        "bytes": sent_bytes,
        "seconds": time.monotonic() - started,
    }
