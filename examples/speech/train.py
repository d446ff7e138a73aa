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
from model import acoustic_model
from options import corpus_settings, parse_arguments

import tf_onebit
import tf_onebit.horovod as hvd

EVALUATION_BATCH_SIZE = 1024
WARM_UP = 0.1  # part of the steps in which the learning rate rises
FINAL_LEARNING_RATE = 0.02  # of the highest
STEPS_NOT_TIMED = 5  # of each block: tracing, and filling of the input pipeline


def make_exchange(options):
    """Returns the `tf_onebit.Exchange` that the command line asks for."""
    if options.exchange == "full":
        return tf_onebit.FullPrecision()
    if options.exchange == "threshold":
        compressed = tf_onebit.Threshold(options.tau, options.target_density, options.coding)
    else:
        columns = {"max_column_size": options.max_column_size} if options.max_column_size else {}
        feedback = options.exchange == "onebit"
        compressed = tf_onebit.OneBit(error_feedback=feedback, **columns)
    warm_start = warm_start_steps(options)
    return tf_onebit.WarmStart(compressed, warm_start) if warm_start else compressed


def warm_start_steps(options):
    """Number of steps in full precision, which workers that train apart cannot make."""
    return 0 if options.asynchronous or options.bmuf else options.warm_start


def learning_rate(options, steps):
    """Returns the learning rate, or a Keras schedule of it, for so many steps."""
    if options.schedule == "constant":
        return options.learning_rate
    warm_up_steps = round(WARM_UP * steps)
    return keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=0.0,
        warmup_target=options.learning_rate,
        warmup_steps=warm_up_steps,
        decay_steps=steps - warm_up_steps,
        alpha=FINAL_LEARNING_RATE,
    )


def make_optimizer(options, learning_rate):
    """Returns the Keras optimizer of a worker."""
    optimizer = keras.optimizers.SGD(learning_rate, momentum=options.momentum)
    if options.bmuf:
        return hvd.DistributedOptimizer(optimizer, tf_onebit.Local())
    exchange = make_exchange(options)
    if options.asynchronous:
        return hvd.AsynchronousOptimizer(optimizer, exchange, max_staleness=options.max_staleness)
    return hvd.DistributedOptimizer(optimizer, exchange)


def block_callbacks(options):
    """Returns the callback that has workers train in blocks, if they are to, in a list."""
    if not options.bmuf:
        return []
    momentum = "auto" if options.block_momentum is None else options.block_momentum
    exchange = make_exchange(options)
    return [tf_onebit.callbacks.BlockMomentum(options.sync_period, momentum, exchange=exchange)]


class StepTimer(keras.callbacks.Callback):
    """Measures the seconds from the end of one step to that of the next, input included."""

    def __init__(self):
        super().__init__()
        self.seconds = []

    def on_train_batch_end(self, batch, logs=None):
        now = time.perf_counter()
        if batch > STEPS_NOT_TIMED:
            self.seconds.append(now - self._previous)
        self._previous = now


def _progress(rank):
    """A progress bar on a terminal, elsewhere (also under horovodrun) a line for each block."""
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
        raise SystemExit("Workers that Horovod connects are started with horovodrun.")
    threads = max(1, len(os.sched_getaffinity(0)) // hvd.local_size())
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    training_split, held_out_split, targets = dataset.load(corpus_settings(options))
    keras.utils.set_random_seed(options.seed)

    shares = options.shares or workers * [1]
    if len(shares) != workers:
        raise SystemExit(f"--shares needs one for each of {workers} workers. Received: {shares}.")
    training = FrameBatches(
        training_split,
        options.batch_size,
        sum(shares[:rank]),
        sum(shares),
        options.blocks_per_epoch,
        shuffle_seed=options.seed,
        first_block=options.first_block,
        share=shares[rank],
    )
    # Who does not wait for others does not average with them, either.
    of_held_out = (0, 1) if options.asynchronous else (rank, workers)
    held_out = FrameBatches(held_out_split, EVALUATION_BATCH_SIZE, *of_held_out)
    blocks = options.blocks or options.epochs * options.blocks_per_epoch - options.first_block
    input_shape = training[0][0].shape[1:]
    model = acoustic_model(
        input_shape, len(targets), options.depth, options.width, options.activation
    )
    if options.load_weights:
        model.load_weights(options.load_weights)
    steps = blocks * len(training)
    model.compile(
        optimizer=make_optimizer(options, learning_rate(options, steps)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    if rank == 0:
        how = f"{options.exchange} in blocks" if options.bmuf else options.exchange
        print(
            f"{workers} worker(s), {how}: {model.count_params():,} parameters, "
            f"{len(targets):,} targets, {blocks} blocks of {len(training)} steps of "
            f"{workers} x {options.batch_size} frames",
            flush=True,
        )
    timer = StepTimer()
    history = model.fit(
        training,
        validation_data=held_out,
        epochs=blocks,
        shuffle=False,  # `FrameBatches` shuffles frames, on all workers alike
        verbose=_progress(rank),
        callbacks=[
            *block_callbacks(options),
            timer,
            hvd.BroadcastGlobalVariablesCallback(0),
            *([] if options.asynchronous else [hvd.MetricAverageCallback()]),
            tf_onebit.callbacks.Monitor(),
            *callbacks,
        ],
    ).history
    if options.asynchronous:  # Keras evaluated before the last of the others' deltas had come
        end = model.evaluate(held_out, verbose=0)
        history["val_loss"][-1], history["val_accuracy"][-1] = end
    if options.save_weights and rank == 0:
        options.save_weights.parent.mkdir(parents=True, exist_ok=True)
        model.save_weights(options.save_weights)
    frames_per_block = len(training) // shares[rank] * sum(shares) * options.batch_size
    return {
        "options": {
            k: str(v) if isinstance(v, pathlib.Path) else v for k, v in vars(options).items()
        },
        "workers": workers,
        "parameters": model.count_params(),
        "targets": len(targets),
        "steps": steps,
        "warm_start_frames": warm_start_steps(options) * workers * options.batch_size,
        "frames": [(block + 1) * frames_per_block for block in range(blocks)],
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
            options.output.parent.mkdir(parents=True, exist_ok=True)
            options.output.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
