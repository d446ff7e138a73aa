"""Builds and runs the C++ tests: kernels without TensorFlow, under sanitizers.

Inputs that fuzzing found before run again, too.
"""

import fcntl
import pathlib
import shutil
import subprocess
import sysconfig

import pytest

from tests.support.nightly import nightly

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Kept between runs: only what has changed is compiled again.
BUILD_FOLDER = ROOT / "build" / "tests_cc"
TESTS = sorted(path.stem for path in (ROOT / "tests" / "cc").glob("*_test.cc"))
FUZZED = sorted(path.stem for path in (ROOT / "tests" / "fuzz").glob("*_fuzz.cc"))


def program(name):
    """Returns the path of a program such as CMake or ninja, preferably from this Python."""
    found = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    assert found, f"{name} not found. Install it: make setup"
    return found


def run(*command):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert result.returncode == 0, f"{' '.join(map(str, command))}\n{result.stdout}"


@pytest.fixture(scope="module")
def build_folder():
    BUILD_FOLDER.mkdir(parents=True, exist_ok=True)
    # Two processes of pytest must not build in the same folder at once.
    with (BUILD_FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run(
            program("cmake"),
            f"-S{ROOT / 'custom_ops'}",
            f"-B{BUILD_FOLDER}",
            "-GNinja",
            f"-DCMAKE_MAKE_PROGRAM={program('ninja')}",
            "-DTF_ONEBIT_TESTS=ON",
            "-DTF_ONEBIT_SANITIZE=ON",
        )
    return BUILD_FOLDER


def test_there_are_tests():
    assert TESTS and FUZZED


@pytest.mark.parametrize("name", [*TESTS, *nightly(*FUZZED)])
def test_kernels_under_sanitizers(build_folder, name):
    run(program("cmake"), "--build", build_folder, "--target", name)
    run(
        program("ctest"),
        *("--test-dir", build_folder),
        *("--tests-regex", f"^{name}$"),
        "--no-tests=error",
        "--output-on-failure",
    )
