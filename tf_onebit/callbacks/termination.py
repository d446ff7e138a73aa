"""A handler of SIGTERM that notes the signal until training can end."""

import os
import signal
import sys
import threading

_STATUS = 128 + signal.SIGTERM  # as a shell tells it


class Termination:
    """A handler of SIGTERM, installed from its construction on.

    Attributes:
        is_requested: whether the signal has arrived.

    Args:
        call: `FitCall` during which the signal is noted. Afterwards it has its earlier effect.

    Raises:
        ValueError: outside of the main thread, where Python cannot handle signals.
    """

    def __init__(self, call):
        if threading.current_thread() is not threading.main_thread():
            raise ValueError(
                "Signals are handled in the main thread. Received: save_before_exit=True, and fit "
                "in another thread. Call fit in the main thread, or leave save_before_exit out."
            )
        self.is_requested = False
        self._call = call
        # This also replaces a handler that TensorFlow may have installed.
        self._previous = _outlived(signal.signal(signal.SIGTERM, self._note))

    def exit(self):
        """Ends the process: calls the earlier handler, and exits with status 143."""
        self.release()
        if callable(self._previous):
            self._previous(signal.SIGTERM, sys._getframe())
        sys.exit(_STATUS)

    def release(self):
        """Restores the earlier handler of the signal."""
        self._call = None
        if signal.getsignal(signal.SIGTERM) == self._note:
            signal.signal(signal.SIGTERM, self._previous)

    def _note(self, signum, frame):
        if self._is_in_fit():
            self.is_requested = True
            return
        # That `fit` ended in an error, and callbacks were not told.
        self.release()
        os.kill(os.getpid(), signal.SIGTERM)

    def _is_in_fit(self):
        return self._call is not None and self._call.is_running()


def _outlived(handler):
    """Returns a handler, or the one before it if a `fit` that ended in an error left it."""
    owner = getattr(handler, "__self__", None)
    if isinstance(owner, Termination) and not owner._is_in_fit():
        return owner._previous
    return signal.SIG_DFL if handler is None else handler  # None: it was not set by Python
