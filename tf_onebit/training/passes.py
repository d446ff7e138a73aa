"""Keras' passes through data, as other workers should know of them."""

import contextlib


def follow(epoch_iterator, whereabouts):
    """Has workers tell when a pass of training ends, and name one that has left where it fails.

    Args:
        epoch_iterator: Keras' own, of a `fit`, which enters its `catch_stop_iteration` once per
            epoch.
        whereabouts: `Whereabouts` of this process.
    """
    if "catch_stop_iteration" in vars(epoch_iterator):
        return
    catch_stop_iteration = epoch_iterator.catch_stop_iteration

    @contextlib.contextmanager
    def followed():
        whereabouts.begin_pass()
        with whereabouts.naming_who_left(), catch_stop_iteration():
            yield
        whereabouts.end_pass()

    epoch_iterator.catch_stop_iteration = followed
