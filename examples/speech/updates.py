"""The update of a minibatch: exchange, AdaGrad, momentum, learning rate."""

import keras

import tf_onebit
import tf_onebit.horovod as hvd
from tf_onebit import transforms

WARM_UP = 0.1  # part of the steps in which the learning rate rises
FINAL_LEARNING_RATE = 0.02  # of the highest
# Seide et al. (2014, ICASSP), table 2, divide the rate by 40 after three of seven passes.
STEP_AT, STEP_FACTOR = 3 / 7, 1 / 40


def frames_per_step(options):
    """Returns the frames of one worker in a step: half a minibatch with a delayed exchange."""
    return options.batch_size // 2 if options.delayed else options.batch_size


def make_exchange(options, workers):
    """Returns the `tf_onebit.Exchange` that the command line asks for."""
    if options.exchange == "full":
        exchange = tf_onebit.FullPrecision()
    elif options.exchange == "threshold":
        exchange = tf_onebit.Threshold(options.tau, options.target_density, options.coding)
    else:
        exchange = _one_bit(options, workers)
    if options.delayed:
        exchange = tf_onebit.Delayed(exchange)
    return exchange if options.exchange == "full" else _warm_start(exchange, options, workers)


def _one_bit(options, workers):
    columns = {"max_column_size": options.max_column_size} if options.max_column_size else {}
    feedback = options.exchange == "onebit"
    if options.adagrad is None:
        return tf_onebit.OneBit(error_feedback=feedback, **columns)
    adagrad = transforms.NormalizedAdaGrad(
        options.adagrad_time_constant, frames_per_step(options) * workers
    )
    # Seide et al. (2014, Interspeech), section 4. Local transforms run before the quantization, the
    # others on the owner of a shard of the sum.
    momentum = [transforms.Momentum(options.momentum)] if options.momentum else []
    local, of_sum = {
        "local": ([adagrad], momentum),
        "aggregate": ([], [adagrad, *momentum]),
        "after-momentum": ([], [*momentum, adagrad]),
    }[options.adagrad]
    return tf_onebit.OneBit(
        error_feedback=feedback, local_transforms=local, transforms=of_sum, **columns
    )


def _warm_start(exchange, options, workers):
    # Workers that train apart cannot make steps in full precision.
    if options.asynchronous or options.bmuf:
        return exchange
    if options.warm_start_samples:
        frames = frames_per_step(options) * workers
        return tf_onebit.WarmStart(
            exchange, samples=options.warm_start_samples, global_batch_size=frames
        )
    return tf_onebit.WarmStart(exchange, options.warm_start) if options.warm_start else exchange


def warm_start_frames(options, workers):
    """Returns the frames of all workers in the warm start."""
    if options.asynchronous or options.bmuf:
        return 0
    return options.warm_start_samples or options.warm_start * workers * frames_per_step(options)


def make_optimizer(options, steps, workers):
    """Returns the Keras optimizer of a worker.

    Args:
        options: what `parse_arguments` returned.
        steps: int. Number of steps of the learning rate's schedule.
        workers: int.
    """
    optimizer = _local_optimizer(options, _learning_rate(options, steps), workers)
    if options.bmuf:
        return hvd.DistributedOptimizer(optimizer, tf_onebit.Local())
    exchange = make_exchange(options, workers)
    if options.asynchronous:
        return hvd.AsynchronousOptimizer(optimizer, exchange, max_staleness=options.max_staleness)
    return hvd.DistributedOptimizer(optimizer, exchange)


def _local_optimizer(options, learning_rate, workers):
    if options.adagrad is None:
        return keras.optimizers.SGD(learning_rate, momentum=options.momentum)
    if options.exchange != "full":
        return keras.optimizers.SGD(learning_rate)  # AdaGrad and momentum are in the exchange
    return tf_onebit.optimizers.NormalizedAdaGrad(
        learning_rate,
        options.adagrad_time_constant,
        frames_per_step(options) * workers,
        momentum=options.momentum,
        adagrad_on="momentum" if options.adagrad == "after-momentum" else "gradient",
    )


def _learning_rate(options, steps):
    # The loss is a mean over the frames of a step. With half the frames the rate is halved, so that
    # each frame changes the weights equally.
    highest = options.learning_rate * frames_per_step(options) / options.batch_size
    if options.schedule == "constant":
        return highest
    if options.schedule == "steps":
        return keras.optimizers.schedules.PiecewiseConstantDecay(
            [round(STEP_AT * steps)], [highest, STEP_FACTOR * highest]
        )
    warm_up_steps = round(WARM_UP * steps)
    return keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=0.0,
        warmup_target=highest,
        warmup_steps=warm_up_steps,
        decay_steps=steps - warm_up_steps,
        alpha=FINAL_LEARNING_RATE,
    )
