"""The tests of kernels under compute-sanitizer, on a GPU."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.gpu.devices import ROOT, Cuda
from tests.gpu.skipping import skip_or_fail

FILES = ["test_one_bit.py", "test_threshold.py", "test_transforms.py", "test_block_momentum.py"]
# Messages of 130 workers take long.
LEFT_OUT = {tool: "not 130" for tool in ("memcheck", "racecheck", "initcheck", "synccheck")}
# A corrupt message may name a value twice, which two threads then change at the same time.
LEFT_OUT["racecheck"] += " and not corrupt"
LIMIT_SECONDS = 120  # of one tool, less than tools/gpu_check.sh gives to all, side by side


def pytest_arguments(tool):
    """Returns how to run all tests that a tool checks, with nightly cases."""
    tests = [ROOT / "tests" / "gpu" / name for name in FILES]
    chosen = ("-m", "", "-k", f"cuda and {LEFT_OUT[tool]}")
    return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen, *tests]


@pytest.mark.parametrize("tool", LEFT_OUT)
def test_nightly_cases_are_checked_too(tool):
    command = [*pytest_arguments(tool), "--collect-only"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "test_squares_of_many_columns_are_added_up[cuda-33000]" in result.stdout
    assert "emulated" not in result.stdout
    assert "130" not in result.stdout


@pytest.mark.parametrize("tool", LEFT_OUT)
def test_kernels_are_clean(tool):
    if Cuda.missing() is not None:
        skip_or_fail(Cuda.missing())
    if shutil.which("compute-sanitizer") is None:
        skip_or_fail("compute-sanitizer is not on the PATH")
    result = subprocess.run(
        [
            # CuPy asks the driver for what it may not have, and handles the errors.
            *("compute-sanitizer", "--tool", tool, "--report-api-errors", "no"),
            *("--error-exitcode", "1", *pytest_arguments(tool)),
        ],
        cwd=ROOT,
        env=os.environ | {"TF_ONEBIT_CHECKED_MEMORY": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    assert result.returncode == 0, result.stdout + result.stderr
