"""Keras' global generator of random numbers.

Relies on `global_seed_generator` and the name that Keras keeps it by
(keras/src/random/seed_generator.py:121, 11).
"""

import numpy as np
from keras.src.backend.common import global_state
from keras.src.random import seed_generator


def make_default_seed():
    """Returns a random seed, the same in each run after `keras.utils.set_random_seed`: int.

    Relies on `make_default_seed` (keras/src/random/seed_generator.py:145).
    """
    return seed_generator.make_default_seed()


def global_generator_state():
    """Returns the state of the global generator: list of ints, or None if there is none yet."""
    generator = global_state.get_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR)
    return None if generator is None else np.array(generator.state).tolist()


def set_global_generator_state(state):
    """Sets the state of the global generator.

    If there is none yet, making it draws a random number from Python's generator.
    """
    seed_generator.global_seed_generator().state.assign(state)
