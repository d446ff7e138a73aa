"""Starts jobs of real worker processes."""

import functools
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import NamedTuple

import psutil

from tests.support.fork_server import ForkServer
from tf_onebit._launch.hosts import reserved_ports

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The launcher's own time to end the workers, and a little more.
_GRACE_SECONDS = 30


class Job(NamedTuple):
    """A job that has ended."""

    returncode: int
    duration_seconds: float
    output: str


_TF_ONEBIT = str(pathlib.Path(sys.executable).with_name("tf-onebit"))
# `horovodrun` imports TensorFlow before it starts anything, to see what Horovod was built with. It
# does so once for MPI, unless it is told to use Gloo, and once for Gloo.
_HOROVODRUN = """
from horovod.runner import launch

launch.gloo_built = lambda verbose: True
launch.run_commandline()
"""
_TWO_NODES = "localhost:2,127.0.0.1:2"
LAUNCHERS = {
    "horovod": (sys.executable, "-c", _HOROVODRUN, "--gloo", "-np", "{}"),
    # Two nodes, each with two processes.
    "nodes": (sys.executable, "-c", _HOROVODRUN, "--gloo", "-np", "{}", "-H", _TWO_NODES),
    "tensorflow": (_TF_ONEBIT, "launch", "-np", "{}", "--"),
    # These run in one process.
    "mirrored": (),
    "alone": (),
}
SETTINGS = {
    # Every worker has at most one core.
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "2",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    # Milliseconds between two looks for work, because there are more threads than cores.
    "HOROVOD_CYCLE_TIME": "5",
}

_fork_server = functools.cache(lambda: ForkServer(SETTINGS))


def free_addresses(count):
    """Returns addresses of this machine, `host:port`, with unused ports."""
    with reserved_ports(count) as ports:
        return [f"127.0.0.1:{port}" for port in ports]


def processes_with(argument, most_seconds=0):
    """Returns the processes of this machine that were started with an argument: list.

    Args:
        argument: str or path.
        most_seconds: time to wait until there are none.
    """
    deadline = time.monotonic() + most_seconds
    while True:
        running = psutil.process_iter(["cmdline"])
        found = [one for one in running if str(argument) in (one.info["cmdline"] or [])]
        if not found or time.monotonic() >= deadline:
            return found
        time.sleep(0.05)


def python(arguments):
    """Returns the command that runs Python with these arguments.

    It is a fork of a server that has imported TensorFlow.
    """
    return _fork_server().command(arguments)


def run_job(engine, world_size, command, timeout_seconds=120, hosts=None, **environment):
    """Runs a command in `world_size` processes on this machine.

    Args:
        engine: "horovod", "nodes" (Horovod on two nodes) or "tensorflow"; or "mirrored" or "alone"
            for a single process.
        world_size: number of worker processes.
        command: list of arguments for Python.
        timeout_seconds: time after which the job is ended, by force if necessary.
        hosts: names of this machine as several hosts, such as "localhost:2,127.0.0.1:2".
        environment: further variables for the workers.

    Returns:
        A `Job`, with the workers' standard output and error.

    Raises:
        TimeoutError: if the job did not end in time.
    """
    launcher = [word.format(world_size) for word in LAUNCHERS[engine]]
    launcher += ["-H", hosts] if hosts else []
    start = time.monotonic()
    with subprocess.Popen(
        [*launcher, *python(command)],
        cwd=ROOT,
        env=os.environ | SETTINGS | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            # Launchers put workers into sessions of their own, and end them on request.
            process.send_signal(signal.SIGTERM)
            try:
                output, _ = process.communicate(timeout=_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise
            raise TimeoutError(
                f"The job did not end within {timeout_seconds} seconds: it hangs.\n{output}"
            ) from None
    return Job(process.returncode, time.monotonic() - start, output)


def horovodrun(world_size, command, timeout_seconds=120, hosts=None, **environment):
    """Runs a Horovod job: see `run_job`."""
    return run_job("horovod", world_size, command, timeout_seconds, hosts, **environment)


def run_apart(module, *arguments):
    """Runs a module in another process, because devices are made before TensorFlow is used.

    Args:
        module: name of the module.
        arguments: strings, for the module.

    Returns:
        What it prints on its last line, as JSON.
    """
    job = subprocess.run(
        python(["-m", module, *arguments]), cwd=ROOT, capture_output=True, text=True
    )
    assert job.returncode == 0, job.stderr
    return json.loads(job.stdout.splitlines()[-1])
