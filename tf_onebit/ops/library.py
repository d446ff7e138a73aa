"""Library of compiled ops."""

import ctypes
import pathlib
import struct
import warnings
from typing import Any

import tensorflow as tf

from tf_onebit._libraries import BUILD_COMMAND, library_path
from tf_onebit._version import __version__
from tf_onebit.ops.gpu_driver import driver_fault, driver_version
from tf_onebit.ops.memory import keep_freed_memory


def _require_whole(path: pathlib.Path) -> None:
    """Raises OSError if an ELF file is cut short, because loading it would kill the process."""
    with path.open("rb") as file:
        header = file.read(64)
    # The table of sections is at the end of the file, and the header says where.
    table_at, entry_bytes, entries = struct.unpack("<40xQ10xHH2x", header.ljust(64, b"\0"))
    if not 0 < table_at + entry_bytes * entries <= path.stat().st_size:
        raise OSError(f"{path} is cut short")


def _text(path: pathlib.Path, name: str) -> str:
    """Calls a function of a library that returns a C string."""
    function = getattr(ctypes.CDLL(str(path)), name)
    function.restype = ctypes.c_char_p
    return function().decode()


def load(path: pathlib.Path) -> Any:
    """Loads the op library, and checks that it was built for the installed versions.

    Raises:
        ImportError: if the library does not load, or was built for other versions.
    """
    minor_version = ".".join(tf.__version__.split(".")[:2])
    expected = f"version={__version__} tensorflow={minor_version}"
    try:
        _require_whole(path)
        # TensorFlow must load it first: it registers a library's ops only while it loads it.
        loaded = tf.load_op_library(str(path))
        built = _text(path, "tf_onebit_build_info")
    except (tf.errors.OpError, OSError, AttributeError) as error:
        raise ImportError(
            f"The compiled ops of tf_onebit do not load: {error}. They were built for another "
            f"TensorFlow, or not completely. Expected: {expected}. Build them with "
            f"{BUILD_COMMAND}."
        ) from error
    if built != expected:
        raise ImportError(
            f"The compiled ops of tf_onebit are stale. Expected: {expected}. Found: {built} in "
            f"{path}. Build them with {BUILD_COMMAND}."
        )
    return loaded


PATH = library_path(tf.__version__)
library = load(PATH)
keep_freed_memory()


def _warn_of_driver() -> None:
    fault = driver_fault(cuda_version(), driver_version())
    if fault is not None:
        warnings.warn(f"The ops of tf_onebit do not run on GPUs: {fault}", stacklevel=1)


def simd() -> str:
    """Returns the instruction set of the kernels on the CPU: "avx512", "avx2" or "plain"."""
    return _text(PATH, "tf_onebit_simd")


def cuda_version() -> str:
    """Returns the CUDA version with which kernels for GPUs were compiled; empty without them."""
    return _text(PATH, "tf_onebit_cuda_version")


def gpu_targets() -> str:
    """Returns the GPUs for which kernels were compiled; empty without such kernels.

    For example "80-real 90-real 100" means machine code for the compute capabilities 8.0, 9.0 and
    10.0, and code that a driver translates for later ones.
    """
    return _text(PATH, "tf_onebit_gpu_targets")


_warn_of_driver()
