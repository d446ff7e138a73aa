"""Models that record what they are trained on."""

import pytest

from tests.support.recording import fresh, recording


@pytest.fixture(scope="module")
def traced():
    """Returns models that record their samples and are traced once, by `steps_per_execution`."""
    return {steps: recording(steps_per_execution=steps) for steps in (1, 3)}


@pytest.fixture
def model(traced):
    return fresh(traced[1])
