"""Fixtures of tests of data, and where programs beside the package are."""

import sys

import pytest

from tests.support.programs import FOLDERS
from tests.support.recording import fresh, recording

sys.path[:0] = FOLDERS


@pytest.fixture(scope="module")
def traced():
    """Models that record their samples and are traced once, by `steps_per_execution`."""
    return {steps: recording(steps_per_execution=steps) for steps in (1, 3)}


@pytest.fixture
def model(traced):
    return fresh(traced[1])
