"""Devices on which GPU kernels run without TensorFlow: a GPU, or its emulation on the CPU.

Tests get arrays of a device, and the library of kernels built for it.
"""

import ctypes
import fcntl
import functools
import hashlib
import pathlib
import shutil
import subprocess
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD_FOLDER = ROOT / "build" / "tests_gpu"
SOURCES = [
    *sorted((ROOT / "custom_ops" / "kernels").glob("*_gpu.cu")),
    ROOT / "tests" / "gpu" / "c_interface.cc",
]
INCLUDED = [ROOT / "custom_ops", ROOT / "tests" / "gpu"]
# As in custom_ops/CMakeLists.txt.
NVCC_OPTIONS = [
    *("-std=c++17", "-O3", "-fmad=false", "-ftz=true", "--expt-relaxed-constexpr"),
    *("-I", ROOT / "custom_ops"),
]


class Emulated:
    """An emulated device: kernels are compiled for the CPU, and device memory is NumPy's."""

    name = "emulated"

    @staticmethod
    def description():
        return "the CPU, which emulates a GPU"

    @staticmethod
    def array_module():
        return np

    @staticmethod
    def missing():
        """Returns why there is no such device, or None if there is one."""
        return None

    @staticmethod
    def compile_command(library):
        return [
            *("g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-ffp-contract=off"),
            "-U_FORTIFY_SOURCE",  # whose longjmp ends a process that jumps between stacks
            *("-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"),
            *("-I", ROOT / "tests" / "gpu" / "emulation", "-I", ROOT / "custom_ops"),
            *("-o", library, "-x", "c++", *SOURCES),
        ]

    @staticmethod
    def array(values):
        return np.array(values)

    @staticmethod
    def numpy(array):
        return array

    @staticmethod
    def pointer(array):
        return array.ctypes.data

    @staticmethod
    def seconds(run):
        """Returns the time of `run`, a function that launches kernels."""
        start = time.perf_counter()
        run()
        return time.perf_counter() - start


class Cuda:
    """The first GPU: kernels are compiled for it, and device memory is CuPy's."""

    name = "cuda"

    @staticmethod
    def description():
        import cupy

        runtime = cupy.cuda.runtime
        properties = runtime.getDeviceProperties(0)
        driver, version = runtime.driverGetVersion(), runtime.runtimeGetVersion()
        return f"{properties['name'].decode()}, driver for CUDA {driver}, CuPy's CUDA {version}"

    @staticmethod
    def array_module():
        import cupy

        return cupy

    @staticmethod
    def nvcc():
        """Returns the path of nvcc, or None."""
        return shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")

    @staticmethod
    @functools.cache
    def missing():
        if Cuda.nvcc() is None:
            return "no nvcc"
        try:
            import cupy
        except ImportError:
            return "no CuPy"
        try:
            cupy.cuda.runtime.getDeviceCount()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            return f"no GPU: {error}"
        return None

    @staticmethod
    def compile_command(library):
        import cupy

        capability = cupy.cuda.Device(0).compute_capability
        return [
            *(Cuda.nvcc(), *NVCC_OPTIONS, "-shared", "-Xcompiler", "-fPIC", "-lineinfo"),
            *("--threads", "0"),  # one for each source
            f"-gencode=arch=compute_{capability},code=sm_{capability}",
            *("-o", library, *SOURCES),
        ]

    @staticmethod
    def array(values):
        import cupy

        return cupy.asarray(values)

    @staticmethod
    def numpy(array):
        return array.get()

    @staticmethod
    def pointer(array):
        return array.data.ptr

    @staticmethod
    def seconds(run):
        import cupy

        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        run()
        end.record()
        end.synchronize()
        return 1e-3 * cupy.cuda.get_elapsed_time(start, end)


def _fingerprint(command):
    digest = hashlib.sha256(" ".join(map(str, command)).encode())
    for folder in INCLUDED:
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".h", ".cu", ".cc"):
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def library_for(device):
    """Returns the kernels as a library of C functions, compiled again if sources have changed."""
    BUILD_FOLDER.mkdir(parents=True, exist_ok=True)
    name = f"kernels_{device.name}.so"
    path = BUILD_FOLDER / f"{_fingerprint(device.compile_command(name))}_{name}"
    # Two processes of pytest must not write the same file at once.
    with (BUILD_FOLDER / f"lock_{device.name}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            unfinished = path.with_suffix(".unfinished")
            result = subprocess.run(
                device.compile_command(unfinished), capture_output=True, text=True
            )
            assert result.returncode == 0, result.stderr
            unfinished.rename(path)
    return ctypes.CDLL(str(path))
