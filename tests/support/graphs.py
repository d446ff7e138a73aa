"""Graphs take longer to make than what tests compute with them."""

import contextlib


@contextlib.contextmanager
def without_graphs():
    """Has each `tf.function` run as the Python function that it was made of."""
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)
