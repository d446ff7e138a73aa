"""Links that delay packets: pairs of TAP devices, between which a thread carries frames."""

import contextlib
import fcntl
import heapq
import itertools
import os
import select
import struct
import threading
import time

_SET_INTERFACE, _SET_OFFLOADS = 0x400454CA, 0x400454D0
# A frame has a header that says how to divide it into packets, and carries up to 64 KiB of TCP.
_TAP_OF_LARGE_FRAMES, _CHECKSUMS_AND_SEGMENTATION = 0x5002, 0x3
_LARGEST_FRAME_BYTES = 2**17
_LONGEST_WAIT_SECONDS = 0.05


def tap_device(name):
    """Makes a TAP device in the network namespace of this thread. Returns its file descriptor."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _SET_INTERFACE, struct.pack("16sH", name.encode(), _TAP_OF_LARGE_FRAMES))
    fcntl.ioctl(device, _SET_OFFLOADS, _CHECKSUMS_AND_SEGMENTATION)
    return device


def carry_with_delay(first, second, delay_seconds):
    """Carries frames between two devices in a thread. Returns a function that ends it.

    Args:
        first, second: file descriptors.
        delay_seconds: time between the arrival of a frame and its departure.
    """
    ended = threading.Event()
    thread = threading.Thread(
        target=_carry, args=({first: second, second: first}, delay_seconds, ended)
    )
    thread.start()

    def end():
        ended.set()
        thread.join()

    return end


def _carry(other_of, delay_seconds, ended):
    waiting, numbers = [], itertools.count()
    while not ended.is_set():
        due_seconds = waiting[0][0] - time.monotonic() if waiting else _LONGEST_WAIT_SECONDS
        pause = min(max(due_seconds, 0.0), _LONGEST_WAIT_SECONDS)
        for device in select.select(list(other_of), [], [], pause)[0]:
            frame = os.read(device, _LARGEST_FRAME_BYTES)
            due = time.monotonic() + delay_seconds
            heapq.heappush(waiting, (due, next(numbers), other_of[device], frame))
        while waiting and waiting[0][0] <= time.monotonic():
            *_, device, frame = heapq.heappop(waiting)
            with contextlib.suppress(OSError):  # a device that is not up yet
                os.write(device, frame)
