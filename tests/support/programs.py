"""Programs that run outside of the process that runs the tests."""

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


def start_python(source, *arguments, folder=ROOT, **environment):
    """Starts a Python program that imports the package in `folder`."""
    paths = [str(folder), os.environ["PYTHONPATH"]]
    return subprocess.Popen(
        [sys.executable, "-c", source, *map(str, arguments)],
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
