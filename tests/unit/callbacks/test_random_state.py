"""Random generators that a backup brings back."""

import random

import keras
import numpy as np
import pytest

from tf_onebit.callbacks.training_state import random_state, set_random_state


@pytest.mark.parametrize(
    "draw",
    [random.random, np.random.random, lambda: float(keras.random.uniform([]))],
    ids=["python", "numpy", "keras"],
)
def test_numbers_go_on_from_the_backup(draw):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    draw()
    state = random_state()
    expected = [draw() for _ in range(3)]
    set_random_state(model, state)
    assert [draw() for _ in range(3)] == expected
