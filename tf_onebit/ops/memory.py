"""The memory of one step's tensors stays with the process, for the next step's."""

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


def keep_freed_memory():
    """Has `free` leave 64 MiB at the end of each heap, instead of giving them to the system.

    TensorFlow 2.21 sets the trimming threshold of glibc to 128 KiB as soon as a process has a
    data set that Python generates: any `keras.utils.PyDataset` or generator, be it for validation
    only. From then on the activations and gradients of each step go back to the system, and the
    next step takes a page fault for every 4 KiB of them. What is left untrimmed at the end of a
    heap, the padding, remains in force.

    Without glibc nothing is done, nor where a variable of the environment says how to allocate.
    """
    if any(name in os.environ for name in _USERS_CHOICE):
        return
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        return
    # To set one of them keeps glibc from adapting the others: they are set where it would end.
    set_option(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
    set_option(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    set_option(_M_TOP_PAD, _KEPT_BYTES)
