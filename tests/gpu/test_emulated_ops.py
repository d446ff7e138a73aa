"""The tests of the ops, with emulated GPU kernels in place of the CPU's."""

import fcntl
import importlib.metadata
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig

import pytest

from tests.gpu.devices import ROOT
from tf_onebit._libraries import library_path
from tf_onebit._version import __version__

BUILD_FOLDER = ROOT / "build" / "tests_gpu_ops"
TESTS = [
    "ops/test_ops.py",
    "ops/test_ops_nonfinite.py",
    "ops/test_threshold_ops.py",
    "ops/test_transform_ops.py",
    "ops/test_block_momentum_ops.py",
    "ops/test_residual_ops.py",
    "exchanges/test_one_bit.py",
    "exchanges/test_residual_dtype.py",
]
# Tests of what differs on a GPU (docs/gpu.md). Messages always have room for their capacity, and
# values in GPU memory are not checked before use.
NOT_ON_GPUS = [
    "without_padding",
    "share_that_is_none_is_refused",
    "mean_that_is_none_is_refused",
]
# Slow, and not about ops: the kernels' own tests have all types and more workers. Messages are
# coded on the CPU, and caches of the CPU do not matter.
LEFT_OUT = [
    *("instruction_sets", "threads_change", "float16", "coded_messages_come_back"),
    *("fit_no_cache", "10931-34-float32", "8-float32"),
    *(f"{world_size}-34-float32" for world_size in (2, 3, 5, 8)),
    *("mean-5", "symmetric-5", "mean-float32-5", "symmetric-float32-5"),
]


def run(*command, **options):
    result = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
    )
    assert result.returncode == 0, f"{' '.join(map(str, command))}\n{result.stdout}"


def tensorflow_minor_version():
    installed = {distribution.name for distribution in importlib.metadata.distributions()}
    name = "tensorflow" if "tensorflow" in installed else "tensorflow-cpu"
    return ".".join(importlib.metadata.version(name).split(".")[:2])


@pytest.fixture(scope="module")
def library():
    """Returns the library of ops, with kernels for GPUs that run on the CPU."""
    found = importlib.util.find_spec("tensorflow")
    if found is None:
        pytest.skip("TensorFlow is not installed")
    tensorflow = pathlib.Path(found.origin).parent
    cmake, ninja = (pathlib.Path(sysconfig.get_path("scripts")) / n for n in ("cmake", "ninja"))
    BUILD_FOLDER.mkdir(parents=True, exist_ok=True)
    # Two processes of pytest must not build in the same folder at once.
    with (BUILD_FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run(
            *(cmake, f"-S{ROOT / 'custom_ops'}", f"-B{BUILD_FOLDER}", "-GNinja"),
            *(f"-DCMAKE_MAKE_PROGRAM={ninja}", f"-DTENSORFLOW_DIR={tensorflow}"),
            f"-DTENSORFLOW_VERSION={tensorflow_minor_version()}",
            f"-DTF_ONEBIT_VERSION={__version__}",
            *("-DTF_ONEBIT_EMULATE_GPU=ON", "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O1"),
        )
        run(cmake, "--build", BUILD_FOLDER)
    return BUILD_FOLDER / "libtf_onebit_ops.so"


@pytest.fixture(scope="module")
def checkout(library, tmp_path_factory):
    """Returns a folder with the tests, and the package with that library."""
    folder = tmp_path_factory.mktemp("emulated")
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    for name in ("tf_onebit", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)
    shutil.copy(library, folder / "tf_onebit" / library_path(tensorflow_minor_version()).name)
    return folder


@pytest.mark.nightly
def test_ops_behave_as_on_the_cpu(checkout):
    selection = " and ".join(f"not {name}" for name in NOT_ON_GPUS + LEFT_OUT)
    files = [f"tests/unit/{name}" for name in TESTS]
    command = [sys.executable, "-m", "pytest", "-q", *files, "-k", selection]
    # The library registers its kernels for the CPU.
    run(*command, cwd=checkout, env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"})
