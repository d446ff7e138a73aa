"""Finding gradients that are not finite."""

import numpy as np
import pytest
import tensorflow as tf

from tf_onebit.exchanges.gradients import not_finite_flag

ONE = np.ones(3, np.float32)
GRADIENTS = {
    "finite": ([ONE, ONE], 0),
    "empty": ([np.zeros(0, np.float32), ONE], 0),
    "nan": ([ONE, np.float32([1, np.nan])], 2),
    "infinities that cancel": ([np.float32([np.inf, -np.inf]), ONE], 1),
    "the first of two": ([ONE, np.float32([np.inf]), np.float32([np.nan])], 2),
    # Only a finite sum tells something.
    "large": ([np.full(4, 3e38, np.float32), np.full(4, 6e4, np.float16)], 0),
    "large beside an infinity": ([np.full(4, 3e38, np.float32), np.float16([np.inf])], 2),
}


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize("decorate", [lambda f: f, tf.function], ids=["eager", "graph"])
def test_the_first_gradient_that_is_not_finite_is_found(decorate, name):
    gradients, expected = GRADIENTS[name]
    assert decorate(not_finite_flag)(list(map(tf.constant, gradients))).numpy() == expected


def test_sparse_gradients_are_searched_for_in_their_values():
    slices = tf.IndexedSlices(tf.constant([[np.nan]]), tf.constant([0]), tf.constant([9, 1]))
    assert not_finite_flag([tf.constant(ONE), slices]).numpy() == 2
