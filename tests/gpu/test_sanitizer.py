"""The tests of kernels under compute-sanitizer, on a GPU."""

import shutil
import subprocess
import sys

import pytest

from tests.gpu.devices import ROOT, Cuda

FILES = ["test_one_bit.py", "test_threshold.py", "test_transforms.py", "test_block_momentum.py"]


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck", "synccheck"])
def test_kernels_are_clean(tool):
    if Cuda.missing() is not None:
        pytest.skip(Cuda.missing())
    if shutil.which("compute-sanitizer") is None:
        pytest.skip("no compute-sanitizer")
    tests = [ROOT / "tests" / "gpu" / name for name in FILES]
    result = subprocess.run(
        [
            *("compute-sanitizer", "--tool", tool, "--error-exitcode", "1"),
            *(sys.executable, "-m", "pytest", "-q", "-k", "cuda", *tests),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
