"""The request to end a process, SIGTERM, kept until a training can follow it."""

import os
import signal
import sys
import threading

_STATUS = 128 + signal.SIGTERM  # as a shell tells it


class Termination:
    """SIGTERM, noted from here on.

    Attributes:
        is_requested: whether it has come.

    Args:
        call: `FitCall` in which it is noted. After it, the signal does what it did before.

    Raises:
        ValueError: outside of the main thread, where Python handles no signals.
    """

    def __init__(self, call):
        if threading.current_thread() is not threading.main_thread():
            raise ValueError(
                "Signals are handled in the main thread. Received: save_before_exit=True, and fit "
                "in another thread. Call fit in the main thread, or leave save_before_exit out."
            )
        self.is_requested = False
        self._call = call
        # Also where TensorFlow has put a handler of its own in the place of Python's.
        self._previous = _outlived(signal.signal(signal.SIGTERM, self._note))

    def exit(self):
        """Ends the process, as the signal asks: through the handler that was there before."""
        self.release()
        if callable(self._previous):
            self._previous(signal.SIGTERM, sys._getframe())
        sys.exit(_STATUS)

    def release(self):
        """Gives the signal back to whoever handled it before."""
        self._call = None
        if signal.getsignal(signal.SIGTERM) == self._note:
            signal.signal(signal.SIGTERM, self._previous)

    def _note(self, signum, frame):
        if self._is_in_fit():
            self.is_requested = True
            return
        # That `fit` ended in an error, of which callbacks are not told.
        self.release()
        os.kill(os.getpid(), signal.SIGTERM)

    def _is_in_fit(self):
        return self._call is not None and self._call.is_running()


def _outlived(handler):
    """A handler, or what was there before it if it is of a `fit` that has ended in an error."""
    owner = getattr(handler, "__self__", None)
    if isinstance(owner, Termination) and not owner._is_in_fit():
        return owner._previous
    return signal.SIG_DFL if handler is None else handler  # None: it was not set by Python
