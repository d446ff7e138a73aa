"""Keras' passes through data, as other workers should know of them."""

import contextlib


def follow(epoch_iterator, whereabouts):
    """Has workers tell when a pass of training ends, and name one that has left where it fails.

    Args:
        epoch_iterator: Keras' own, of a `fit`, which enters its `catch_stop_iteration` once per
            epoch.
        whereabouts: `Whereabouts` of this process.
    """
    cls = type(epoch_iterator)
    if not issubclass(cls, _Followed):
        # Its class, and not the object, or that would be freed later than its data must end.
        attributes = {"whereabouts": whereabouts}
        epoch_iterator.__class__ = type(cls.__name__, (_Followed, cls), attributes)


class _Followed:
    """A mixin for Keras' epoch iterators.

    Attributes:
        whereabouts: `Whereabouts`.
    """

    @contextlib.contextmanager
    def catch_stop_iteration(self):
        self.whereabouts.begin_pass()
        with self.whereabouts.naming_who_left(), super().catch_stop_iteration():
            yield
        self.whereabouts.end_pass()
