"""Notes that TensorFlow's libraries write when loaded, despite TF_CPP_MIN_LOG_LEVEL."""

import contextlib
import os
import re
import sys

_NOTE = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR"
    rb"|I\d{4} \S+ +\d+ port\.cc:\d+\] oneDNN "
    rb"|[WE]\d{4} \S+ +\d+ (cuda_(dnn|fft|blas)|computation_placer)\.cc:\d+\] .*(register|already)"
)


def is_start_up_note(line):
    """Tells whether a line (bytes) is a note of every start, and not an error."""
    return _NOTE.match(line) is not None


@contextlib.contextmanager
def without_start_up_notes():
    """Removes start-up notes from standard error within a context that imports TensorFlow.

    A child process filters the lines, so that no line is lost if this process crashes.
    """
    if "tensorflow" in sys.modules:
        yield
        return
    reader, writer = os.pipe()
    errors = os.dup(2)
    child = os.fork()
    if child == 0:
        os.close(writer)
        with open(reader, "rb") as lines:
            for line in lines:
                if not is_start_up_note(line):
                    os.write(errors, line)
        os._exit(0)
    os.close(reader)
    os.dup2(writer, 2)
    os.close(writer)
    try:
        yield
    finally:
        os.dup2(errors, 2)
        os.close(errors)
        os.waitpid(child, 0)
