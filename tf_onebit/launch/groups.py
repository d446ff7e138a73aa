"""Groups of processes, and how they end. Run as a program, it ends them when its parent is gone."""

import contextlib
import os
import signal
import subprocess
import sys
import time

POLL_SECONDS = 0.01
# Between asking processes to end and making them.
GRACE_SECONDS = 10
_WATCHED_NO_MORE = "end"


def end(groups, is_urgent=lambda: False):
    """Asks groups of processes to end, and makes those that have not within `GRACE_SECONDS`.

    Args:
        groups: list of the groups' ids.
        is_urgent: function that says whether to wait no longer.
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
    """Tells whether a group has processes, but for children of this one that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


class Watchdog:
    """A process that ends groups of others when this one is gone, however that ended.

    A signal on the parent's death would reach neither what a worker has started nor, often, a
    worker that handles that signal.
    """

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def watch(self, group):
        """Adds a group."""
        self._tell(group)

    def dismiss(self):
        """Ends the watchdog alone."""
        self._tell(_WATCHED_NO_MORE)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()

    def _tell(self, word):
        with contextlib.suppress(BrokenPipeError):  # somebody has ended it
            print(word, file=self._process.stdin, flush=True)


def _watch():
    words = sys.stdin.read().split()  # until the parent is gone, or says so
    if _WATCHED_NO_MORE not in words:
        end([int(word) for word in words])


if __name__ == "__main__":
    _watch()
