"""Leaves tf.data untuned in the process that imports this.

Otherwise a thread tunes buffers beside each iterator. The iterator is freed when that thread wakes,
and it sleeps for as long as the iterator is old: a training of two seconds ends after four.
"""

import tensorflow as tf


def _untuned(dataset):
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


# TensorFlow calls it before it makes an iterator, also under a strategy.
assert hasattr(tf.data.Dataset, "_apply_debug_options")
tf.data.Dataset._apply_debug_options = _untuned
