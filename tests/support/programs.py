"""Programs that run outside of the process that runs the tests."""

import functools
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Programs beside the package import each other from these folders.
FOLDERS = [
    str(ROOT / path)
    for path in ("examples/speech", "examples/your_own_exchange", "reproduction", "benchmarks")
]


@functools.cache
def _fork_server():
    from tests.support.fork_server import ForkServer

    # NumPy would start threads on import.
    return ForkServer({"OMP_NUM_THREADS": "1"}, num_servers=1)


def start_python(source, *arguments, folder=ROOT, in_fork=False, **environment):
    """Starts a Python program that imports the package in `folder`.

    Args:
        source: string, the program.
        *arguments: of its command line.
        folder: path, where it runs.
        in_fork: whether it runs in a fork of a process that has imported TensorFlow, which is
            for programs that test nothing of that import.
        **environment: variables, besides the caller's.
    """
    command = ["-c", source, *map(str, arguments)]
    paths = [str(folder), os.environ["PYTHONPATH"]]
    return subprocess.Popen(
        _fork_server().command(command) if in_fork else [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_python(source, *arguments, **options):
    """Runs a Python program. Returns its exit status, output and errors."""
    process = start_python(source, *arguments, **options)
    output, errors = process.communicate(timeout=120)
    return process.returncode, output, errors
