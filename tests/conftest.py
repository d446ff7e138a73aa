"""Settings and fixtures for all tests."""

import os

# Before TensorFlow is imported: its notes would bury what a test prints.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np  # noqa: E402
import pytest  # noqa: E402


@pytest.fixture
def rng():
    return np.random.default_rng(1)
