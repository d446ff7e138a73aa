"""Keras' passes through data: compared between workers, and announced to them."""

import contextlib
import functools

import tensorflow as tf

from tf_onebit._framework_internals.class_changes import overlay
from tf_onebit._training.model_optimizers import optimizers_of
from tf_onebit.exchanges.handshake import handshake

_REMEDY = (
    "Give every worker the same number of batches, for example by cutting the data to a multiple "
    "of workers and batch size, or by steps_per_epoch."
)


def compare(fit, engine):
    """Compares the batches and epochs of a `fit` between workers, which Horovod does not.

    Args:
        fit: `FitCall`.
        engine: `Engine` of workers that make every step together.

    Raises:
        ValueError: on all workers, if their numbers differ.
    """
    numbers = [
        ("number of batches in an epoch", _number(fit.number_of_batches)),
        ("first epoch", str(fit.first_epoch)),
        ("last epoch", str(fit.last_epoch)),
    ]
    with tf.init_scope():  # also while the first step is traced
        engine.run([handshake("fit", numbers, _REMEDY) for _ in engine.ranks])


def _number(value):
    return "not known" if value is None else str(value)


def follow_fit(fit, under_way=False):
    """Makes workers announce their passes in a `fit`, if they make every step together.

    If Keras does not know the number of batches of an epoch, workers also meet before each epoch
    that has not begun yet.

    Args:
        fit: `FitCall`.
        under_way: whether its first epoch has already begun.
    """
    exchange = exchange_in_step(fit.model)
    if exchange is None:
        return
    before = None
    if fit.number_of_batches is None:
        before = functools.partial(_meet_before_epoch, fit.model)
    follow(fit.epoch_iterator, exchange.workers.engine.whereabouts, before, under_way)


def _meet_before_epoch(model):
    exchange = exchange_in_step(model)
    if exchange is not None:
        exchange.workers.meet("begin of an epoch", optimizers_of(model)[0].iterations)


def exchange_in_step(model):
    """Returns the `GradientExchange` of a model whose workers make every step together.

    Returns None if the workers do not, or if the model has no `GradientExchange`.
    """
    exchanges = [getattr(o, "gradient_exchange", None) for o in optimizers_of(model)]
    exchanges = [exchange for exchange in exchanges if exchange is not None]
    if exchanges and all(exchange.workers.are_in_step for exchange in exchanges):
        return exchanges[0]
    return None


def follow(epoch_iterator, whereabouts, before=None, under_way=False):
    """Announces the begin and end of each training pass, and names a worker that has left.

    Args:
        epoch_iterator: Keras' epoch iterator of a `fit`. Its `catch_stop_iteration` is entered
            once per epoch.
        whereabouts: `Whereabouts` of this process.
        before: function without arguments, called before every pass that has not begun yet.
        under_way: whether the first pass has already begun.
    """
    if isinstance(epoch_iterator, _Followed):
        return
    # A method set on the object itself would keep it alive too long: its data must end before.
    before = staticmethod(before or (lambda: None))
    overlay(epoch_iterator, _Followed, whereabouts=whereabouts, before=before)
    if under_way:
        whereabouts.begin_pass()
        _follow_to_end(epoch_iterator.data_adapter, whereabouts)


def _follow_to_end(data_adapter, whereabouts):
    """Announces the end of a pass that has already entered `catch_stop_iteration`."""
    on_epoch_end = data_adapter.on_epoch_end

    def end():
        del data_adapter.on_epoch_end
        whereabouts.end_pass()
        on_epoch_end()

    data_adapter.on_epoch_end = end


class _Followed:
    """Mixin for Keras' epoch iterators.

    Attributes:
        whereabouts, before: see `follow`.
    """

    @contextlib.contextmanager
    def catch_stop_iteration(self):
        self.before()
        self.whereabouts.begin_pass()
        with self.whereabouts.naming_who_left(), super().catch_stop_iteration():
            yield
        self.whereabouts.end_pass()
