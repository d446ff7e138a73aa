"""Process groups and how to end them.

As a program, this module ends groups when its parent is gone.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time

POLL_SECONDS = 0.01
# Time between asking processes to end and killing them.
GRACE_SECONDS = 10
_WATCHED_NO_MORE = "end"
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans():
    """Makes processes that outlive their parents children of this one, if it is an ancestor.

    So it can find out whether they have ended.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end(groups, is_urgent=lambda: False):
    """Asks process groups to end, and kills those that have not ended within `GRACE_SECONDS`.

    Args:
        groups: list of the groups' ids.
        is_urgent: function that tells whether to stop waiting.
    """
    deadline = time.monotonic() + GRACE_SECONDS
    _signal(groups, signal.SIGTERM)
    while time.monotonic() < deadline and not is_urgent() and any(map(_is_alive, groups)):
        time.sleep(POLL_SECONDS)
    _signal(groups, signal.SIGKILL)


def _signal(groups, signum):
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signum)


def _is_alive(group):
    """Tells whether a group has processes other than ended children of this process."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


class Watchdog:
    """Process that ends groups of other processes when this one is gone for any reason.

    A signal on the parent's death would not reach the processes that a worker has started. Often
    it would not end a worker that handles the signal, either.
    """

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def watch_this_group(self):
        """Adds the group of the calling process, between its fork and its program.

        The parent may be gone before it knows the child. Thus the child adds itself.
        """
        # `subprocess` has made it deadly again, as programs expect. The watchdog may be gone.
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        self._tell(os.getpgrp())
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)

    def dismiss(self):
        """Ends the watchdog, but no group."""
        self._tell(_WATCHED_NO_MORE)
        self._process.stdin.close()
        self._process.wait()

    def _tell(self, word):
        with contextlib.suppress(BrokenPipeError):  # the watchdog has been ended
            os.write(self._process.stdin.fileno(), f"{word}\n".encode())


def _watch():
    words = sys.stdin.read().split()  # until the parent is gone, or dismisses this process
    if _WATCHED_NO_MORE not in words:
        end([int(word) for word in words])


if __name__ == "__main__":
    _watch()
