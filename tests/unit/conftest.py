"""Fixtures of tests of data, and where programs beside the package are."""

import sys

import pytest

from tests.unit.programs import ROOT
from tests.unit.recording import fresh, recording

sys.path[:0] = [str(ROOT / path) for path in ("examples/speech", "reproduction", "benchmarks")]


@pytest.fixture(scope="module")
def traced():
    """Models that record their samples and are traced once, by `steps_per_execution`."""
    return {steps: recording(steps_per_execution=steps) for steps in (1, 3)}


@pytest.fixture
def model(traced):
    return fresh(traced[1])
