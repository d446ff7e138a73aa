"""Check whether the driver of NVIDIA's GPUs can run the compiled kernels."""

import ctypes

# First driver version for each major version of CUDA.
_FIRST_DRIVERS = {12: "525", 13: "580"}


def driver_version() -> tuple[int, int] | None:
    """Returns the newest CUDA version that the installed driver runs: (major, minor), or None."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int(0)
    if driver.cuDriverGetVersion(ctypes.byref(version)) != 0 or version.value == 0:
        return None
    return version.value // 1000, version.value % 1000 // 10


def driver_fault(cuda_version: str, driver: tuple[int, int] | None) -> str | None:
    """Says why a driver cannot run the kernels, and what to do: a sentence, or None if it can.

    Args:
        cuda_version: version with which the kernels were compiled, for example "13.0.88"; empty
            if there are no kernels for GPUs.
        driver: result of `driver_version`.
    """
    if not cuda_version or driver is None:
        return None
    major = int(cuda_version.split(".")[0])
    if driver[0] >= major:
        return None
    return (
        f"the driver is for CUDA {driver[0]}.{driver[1]}, and the kernels are compiled with CUDA "
        f"{cuda_version}. Install driver {_FIRST_DRIVERS.get(major, 'for that CUDA')} or later, or "
        "build the ops with an nvcc of the driver's version: python setup.py build_ext --inplace"
    )
