"""Options of malloc that keep the memory of one step's tensors for the next step."""

import ctypes
import os

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h of glibc
_KEPT_BYTES = 64 * 2**20  # where glibc's own threshold for trimming ends as it adapts
_LARGEST_MMAP_THRESHOLD = 32 * 2**20  # which glibc allows
_USERS_CHOICE = (
    "GLIBC_TUNABLES",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_TRIM_THRESHOLD_",
)


def keep_freed_memory() -> None:
    """Makes `free` keep 64 MiB at the end of each heap, instead of returning them to the system.

    TensorFlow 2.21 sets glibc's trimming threshold to 128 KiB as soon as a process has a data set
    that Python generates: any `keras.utils.PyDataset` or generator, even one for validation. From
    then on, each step returns the memory of its activations and gradients to the system. The next
    step takes a page fault for every 4 KiB of it. TensorFlow leaves the padding unchanged, which
    is the memory that trimming keeps at the end of a heap.

    It does nothing without glibc, or if an environment variable sets malloc options.
    """
    if any(name in os.environ for name in _USERS_CHOICE):
        return
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        return
    # Setting one option stops glibc from adapting the others. So each is set to its final value.
    set_option(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
    set_option(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    set_option(_M_TOP_PAD, _KEPT_BYTES)
