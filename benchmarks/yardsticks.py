"""Memory traffic that bounds what compiled ops do, to compare their times with."""

import concurrent.futures
import ctypes

import numpy as np


def make_yardsticks(num_values, threads=1):
    """Returns functions of memory traffic: NumPy's add (with plain stores), and libc's memset.

    TensorFlow asks for no huge pages. Set NUMPY_MADVISE_HUGEPAGE to 0 before NumPy is imported, so
    that NumPy's arrays have the same pages.

    Args:
        num_values: length of the float32 arrays.
        threads: number of threads that share the work.

    Returns:
        Dictionary: functions without arguments by name, "triad" (a = b + c) and "memset".
    """
    a, b, c = (np.ones(num_values, np.float32) for _ in range(3))
    parts = list(zip(*(np.array_split(array, threads) for array in (a, b, c)), strict=True))
    memset = ctypes.CDLL(None).memset
    memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    pool = concurrent.futures.ThreadPoolExecutor(threads)

    def add_part(part):
        np.add(part[1], part[2], out=part[0])

    def set_part(part):
        # Some processors write zeros several times faster than other values, so the value is 1.
        memset(part[0].ctypes.data, 1, part[0].nbytes)

    return {
        "triad": lambda: list(pool.map(add_part, parts)),
        "memset": lambda: list(pool.map(set_part, parts)),
    }
