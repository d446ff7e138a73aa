"""Comparison of a `fit` between workers over Horovod, which nothing else compares."""

import tensorflow as tf

from tf_onebit.exchanges.handshake import handshake
from tf_onebit.training.model_optimizers import optimizers_of
from tf_onebit.training.passes import follow

_REMEDY = (
    "Give every worker the same number of batches, for example by cutting the data to a multiple "
    "of workers and batch size, or by steps_per_epoch."
)


def compare(fit, gradient_exchange):
    """Compares the batches and epochs of a `fit` between workers, and follows it.

    Args:
        fit: frame of Keras' `fit`.
        gradient_exchange: `GradientExchange` of workers that make every step together.

    Raises:
        ValueError: on all workers, if their numbers differ.
    """
    iterator = fit.f_locals["epoch_iterator"]
    follow(iterator, gradient_exchange.engine.whereabouts)
    numbers = [
        ("number of batches in an epoch", _number(iterator.num_batches)),
        ("first epoch", str(fit.f_locals["initial_epoch"])),
        ("last epoch", str(fit.f_locals["epochs"])),
    ]
    group = gradient_exchange.group
    with tf.init_scope():  # also while the first step is traced
        group.run([handshake("fit", numbers, _REMEDY) for _ in group.ranks])


def compare_epoch(gradient_exchange, epoch, batches):
    """Compares where workers are at the begin of an epoch, if no number of batches is known.

    Args:
        gradient_exchange: `GradientExchange`.
        epoch: number of the epoch.
        batches: number of batches that this worker has made in all epochs before.

    Raises:
        ValueError: on all workers, if they differ.
    """
    place = [("epoch that begins", str(epoch)), ("number of batches so far", str(batches))]
    so_far = f"at the begin of epoch {epoch + 1}, after {batches} batches in all"
    gradient_exchange.group.meet([handshake("an epoch", place, _REMEDY)], detail=so_far)


def _number(value):
    return "not known" if value is None else str(value)


def exchange_in_step(model):
    """The `GradientExchange` of a model whose workers make every step together, or None."""
    exchanges = [getattr(o, "gradient_exchange", None) for o in optimizers_of(model)]
    exchanges = [exchange for exchange in exchanges if exchange is not None]
    if exchanges and all(exchange.is_in_step for exchange in exchanges):
        return exchanges[0]
    return None
