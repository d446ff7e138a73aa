"""Keras' passes through data, as other workers should know of them."""

import contextlib
import functools

from tf_onebit.framework_internals.class_changes import overlay
from tf_onebit.training.model_optimizers import optimizers_of


def follow_fit(fit, under_way=False):
    """Has workers that make every step together follow each other in a `fit`.

    If Keras does not know how many batches an epoch has, they meet before each that is still to
    begin.

    Args:
        fit: `FitCall`.
        under_way: whether its first epoch has begun already.
    """
    exchange = exchange_in_step(fit.model)
    if exchange is None:
        return
    before = None
    if fit.number_of_batches is None:
        before = functools.partial(_meet_before_epoch, fit.model)
    follow(fit.epoch_iterator, exchange.engine.whereabouts, before, under_way)


def _meet_before_epoch(model):
    exchange = exchange_in_step(model)
    if exchange is not None:
        exchange.meet("begin of an epoch", optimizers_of(model)[0].iterations)


def exchange_in_step(model):
    """The `GradientExchange` of a model whose workers make every step together, or None."""
    exchanges = [getattr(o, "gradient_exchange", None) for o in optimizers_of(model)]
    exchanges = [exchange for exchange in exchanges if exchange is not None]
    if exchanges and all(exchange.is_in_step for exchange in exchanges):
        return exchanges[0]
    return None


def follow(epoch_iterator, whereabouts, before=None, under_way=False):
    """Has workers tell when a pass of training ends, and name one that has left where it fails.

    Args:
        epoch_iterator: Keras' own, of a `fit`, which enters its `catch_stop_iteration` once per
            epoch.
        whereabouts: `Whereabouts` of this process.
        before: what to call before every pass that is still to begin, without arguments.
        under_way: whether the first pass has begun already.
    """
    if isinstance(epoch_iterator, _Followed):
        return
    # Its class, and not the object, or that would be freed later than its data must end.
    before = staticmethod(before or (lambda: None))
    overlay(epoch_iterator, _Followed, whereabouts=whereabouts, before=before)
    if under_way:
        whereabouts.begin_pass()
        _follow_to_end(epoch_iterator.data_adapter, whereabouts)


def _follow_to_end(data_adapter, whereabouts):
    """Has a pass tell when it ends that has entered `catch_stop_iteration` already."""
    on_epoch_end = data_adapter.on_epoch_end

    def end():
        del data_adapter.on_epoch_end
        whereabouts.end_pass()
        on_epoch_end()

    data_adapter.on_epoch_end = end


class _Followed:
    """A mixin for Keras' epoch iterators.

    Attributes:
        whereabouts, before: as of `follow`.
    """

    @contextlib.contextmanager
    def catch_stop_iteration(self):
        self.before()
        self.whereabouts.begin_pass()
        with self.whereabouts.naming_who_left(), super().catch_stop_iteration():
            yield
        self.whereabouts.end_pass()
