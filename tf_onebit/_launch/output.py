"""Output of workers, marked by rank and written as it comes."""

import math
import os
import shutil
import sys
import threading
import time

from tf_onebit._launch.groups import GRACE_SECONDS
from tf_onebit._start_up_notes import is_start_up_note

_CHUNK_BYTES = 2**16
# Least time between two redrawn lines of a worker in a file.
_SECONDS_PER_REDRAW = 1.0


class Output:
    """Output of workers, copied as it comes.

    A line is written when it is complete. A line that carriage returns redraw, such as a progress
    bar, is written earlier. A terminal shows it in place. A file gets a line from time to time.

    Args:
        verbose: whether to write TensorFlow's notes at start-up, too.

    Attributes:
        error: `OSError` if the output cannot be written, or None.
    """

    def __init__(self, verbose=False):
        self.error = None
        self._verbose = verbose
        self._readers = []
        terminal = _Terminal(sys.stdout.buffer)
        self._files = [
            (file, terminal if _can_redraw(file) else _File(file.buffer))
            for file in (sys.stdout, sys.stderr)
        ]

    def copy(self, workers):
        """Begins to copy the output of workers."""
        for rank, worker in enumerate(workers):
            for number, pipe in enumerate((worker.stdout, worker.stderr)):
                arguments = pipe, *self._files[number], (rank, number)
                reader = threading.Thread(target=self._copy, args=arguments, daemon=True)
                reader.start()
                self._readers.append(reader)

    def finish(self):
        """Waits until all output of workers has been copied."""
        for reader in self._readers:
            reader.join(GRACE_SECONDS)

    def _copy(self, pipe, file, copies, source):
        rest, mark = b"", f"[{source[0]}] ".encode()
        try:
            while chunk := os.read(pipe.fileno(), _CHUNK_BYTES):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if self._verbose or not is_start_up_note(line):
                        copies.write(source, mark + _shown(line))
                if b"\r" in rest:
                    copies.redraw(source, mark + _shown(rest))
                    rest = b"\r" + _shown(rest)
            if rest:
                copies.write(source, mark + _shown(rest))
        except OSError as error:
            # A pipe to `head` was closed, or a disk is full. Python's buffered output must not
            # fail again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())
            self.error = error


def _shown(line):
    """Returns what a terminal shows of a line with carriage returns."""
    parts = [part.strip(b"\b") for part in line.split(b"\r")]
    return next((part for part in reversed(parts) if part), b"")


def _can_redraw(file):
    return file.isatty() and os.environ.get("TERM") != "dumb"


class _File:
    """File or pipe, where some states of a redrawn line, and its last one, become lines.

    Args:
        file: binary file.
    """

    def __init__(self, file):
        self._file = file
        self._lock = threading.Lock()
        self._seconds = {}  # when each source was last redrawn

    def write(self, source, line):
        with self._lock:
            self._file.write(line + b"\n")
            self._file.flush()

    def redraw(self, source, line):
        now = time.monotonic()
        if now - self._seconds.get(source, -math.inf) >= _SECONDS_PER_REDRAW:
            self._seconds[source] = now
            self.write(source, line)


class _Terminal:
    """Terminal, where redrawn lines stay below all others, one for each source.

    Args:
        file: binary file.
    """

    def __init__(self, file):
        self._file = file
        self._lock = threading.Lock()
        self._redrawn = {}

    def write(self, source, line):
        with self._lock:
            rows = len(self._redrawn)
            self._redrawn.pop(source, None)
            self._draw(rows, b"\x1b[J" + line + b"\n")

    def redraw(self, source, line):
        with self._lock:
            rows = len(self._redrawn)
            if source in self._redrawn or rows < shutil.get_terminal_size().lines - 1:
                self._redrawn[source] = line
                self._draw(rows)

    def _draw(self, rows, above=b""):
        """Overwrites the last rows."""
        up = b"\x1b[%dA" % rows if rows else b""
        # Each line has one row: the terminal cuts longer lines.
        lines = (line for _, line in sorted(self._redrawn.items()))
        redrawn = [b"\x1b[2K\x1b[?7l" + line + b"\x1b[?7h\n" for line in lines]
        self._file.write(up + above + b"".join(redrawn))
        self._file.flush()
