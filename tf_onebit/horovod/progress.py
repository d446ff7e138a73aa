"""Comparison of a `fit` between workers over Horovod, which Horovod itself does not make."""

import tensorflow as tf

from tf_onebit.exchanges.handshake import handshake

_REMEDY = (
    "Give every worker the same number of batches, for example by cutting the data to a multiple "
    "of workers and batch size, or by steps_per_epoch."
)


def compare(fit, gradient_exchange):
    """Compares the batches and epochs of a `fit` between workers.

    Args:
        fit: `FitCall`.
        gradient_exchange: `GradientExchange` whose workers make every step together.

    Raises:
        ValueError: on all workers, if their numbers differ.
    """
    numbers = [
        ("number of batches in an epoch", _number(fit.number_of_batches)),
        ("first epoch", str(fit.first_epoch)),
        ("last epoch", str(fit.last_epoch)),
    ]
    exchange = gradient_exchange
    group = exchange.engine if exchange.is_in_step else exchange.group
    with tf.init_scope():  # also while the first step is traced
        group.run([handshake("fit", numbers, _REMEDY) for _ in group.ranks])


def _number(value):
    return "not known" if value is None else str(value)
