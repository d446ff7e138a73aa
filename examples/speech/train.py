"""One worker of a speech training job.

horovodrun -np 2 python examples/speech/train.py --exchange onebit
python examples/speech/train.py --preset tiny          # a single process
"""

import json
import os
import pathlib
import sys
import time

import dataset
import keras
import numpy as np
import tensorflow as tf
from batches import FrameBatches
from course import course_of
from options import corpus_settings, parse_arguments
from start import initial_model
from updates import make_exchange, make_optimizer, warm_start_frames

import tf_onebit
import tf_onebit.horovod as hvd

EVALUATION_BATCH_SIZE = 1024
STEPS_NOT_TIMED = 5  # in each block, for tracing and filling of the input pipeline


def block_callbacks(options, workers):
    """Returns a list with the callback for training in blocks, or an empty list."""
    if not options.bmuf:
        return []
    momentum = "auto" if options.block_momentum is None else options.block_momentum
    exchange = make_exchange(options, workers)
    return [tf_onebit.callbacks.BlockMomentum(options.sync_period, momentum, exchange=exchange)]


class StepTimer(keras.callbacks.Callback):
    """Measures the seconds between the ends of two steps, including the input."""

    def __init__(self):
        super().__init__()
        self.seconds = []

    def on_train_batch_end(self, batch, logs=None):
        now = time.perf_counter()
        if batch > STEPS_NOT_TIMED:
            self.seconds.append(now - self._previous)
        self._previous = now


def _progress(rank):
    """Returns `verbose` of `fit`: a progress bar on a terminal, else a line for each block."""
    return 0 if rank else 1 if sys.stdout.isatty() else 2


def train(options, callbacks=()):
    """Trains, and returns curves and final figures as a dict of plain values.

    Args:
        options: what `parse_arguments` returned.
        callbacks: further Keras callbacks.
    """
    hvd.init()
    rank, workers = hvd.rank(), hvd.size()
    if workers == 1 and "TF_CONFIG" in os.environ:
        raise SystemExit("Start the workers of a job over Horovod with horovodrun.")
    threads = max(1, len(os.sched_getaffinity(0)) // hvd.local_size())
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    training_split, held_out_split, targets = dataset.load(corpus_settings(options))
    keras.utils.set_random_seed(options.seed)

    # Asynchronous workers do not average metrics, so each evaluates all held-out data.
    of_held_out = (0, 1) if options.asynchronous else (rank, workers)
    held_out = FrameBatches(held_out_split, EVALUATION_BATCH_SIZE, *of_held_out)
    development = None
    if options.auto_learning_rate:  # other voices than the reported ones
        development_split = dataset.load_development(corpus_settings(options))
        development = FrameBatches(development_split, EVALUATION_BATCH_SIZE, rank, workers)
    course = course_of(options, training_split, development, rank, workers)
    model = initial_model(options, training_split, len(targets), rank, workers)
    model.compile(
        optimizer=make_optimizer(options, course.steps, workers),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    if rank == 0:
        how = f"{options.exchange} in blocks" if options.bmuf else options.exchange
        print(
            f"{workers} worker(s), {how}: {model.count_params():,} parameters, "
            f"{len(targets):,} targets, {course.description}",
            flush=True,
        )
    timer = StepTimer()
    history = model.fit(
        **course.fit_arguments,
        validation_data=held_out,
        verbose=_progress(rank),
        callbacks=[
            *block_callbacks(options, workers),
            timer,
            hvd.BroadcastGlobalVariablesCallback(0),
            *([] if options.asynchronous else [hvd.MetricAverageCallback()]),
            *course.callbacks,
            tf_onebit.callbacks.Monitor(),
            *callbacks,
        ],
    ).history
    if options.asynchronous:  # Keras evaluated before all deltas had arrived
        end = model.evaluate(held_out, verbose=0)
        history["val_loss"][-1], history["val_accuracy"][-1] = end
    if options.save_weights and rank == 0:
        options.save_weights.parent.mkdir(parents=True, exist_ok=True)
        model.save_weights(options.save_weights)
    if options.output and rank == 0:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        course.plot(options.output.with_suffix(".minibatches.png"))
    return {
        "options": {
            k: str(v) if isinstance(v, pathlib.Path) else v for k, v in vars(options).items()
        },
        "workers": workers,
        "parameters": model.count_params(),
        "targets": len(targets),
        "steps": course.steps,
        "warm_start_frames": warm_start_frames(options, workers),
        "frames": course.frames,
        **course.summary(),
        "training_cross_entropy": history["loss"],
        "training_accuracy": history["accuracy"],
        "held_out_cross_entropy": history["val_loss"],
        "held_out_accuracy": history["val_accuracy"],
        "bytes_sent_per_step": history["bytes_sent"][-1],
        "compression_ratio": history["compression_ratio"][-1],
        "residual_norm": history["residual_norm"],
        "delay_steps": history.get("delay"),  # of asynchronous workers
        "milliseconds_per_step": 1000 * np.median(timer.seconds),
        "milliseconds_per_step_quartiles": (1000 * np.percentile(timer.seconds, [25, 75])).tolist(),
    }


def main(callbacks=()):
    options = parse_arguments(description=__doc__)
    results = train(options, callbacks)
    if hvd.rank() == 0:
        print(
            f"held-out frame accuracy {results['held_out_accuracy'][-1]:.2%}, "
            f"cross entropy {results['held_out_cross_entropy'][-1]:.3f}"
        )
        if options.output:
            options.output.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
