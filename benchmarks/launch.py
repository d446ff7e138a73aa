"""Starts workers on the hosts of a `Network`, and collects their measurements."""

import contextlib
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousServer

from tf_onebit._launch import tf_config

_TENSORFLOW_PORT = 2222


def run_workers(network, script, arguments, timeout_seconds=900, per_host=1):
    """Runs a script on every host of a network, as one job of Horovod or TensorFlow.

    Consecutive workers are on one host. Each is pinned to a core that this process may use. If
    there are more workers than cores, consecutive workers share a core. So members of a group share
    one, and no other group computes there while they wait for each other.

    Args:
        network: `Network`.
        script: path of a Python script, which prints its result as JSON on its last line.
        arguments: command-line arguments of the script.
        timeout_seconds: time after which the job counts as hanging.
        per_host: number of workers on each host.

    Returns:
        List of the workers' results, by rank.

    Raises:
        RuntimeError: if a worker fails or the time is over. All other workers are ended.
    """
    cores = sorted(os.sched_getaffinity(0))
    num_workers = network.num_hosts * per_host
    workers_per_core = math.ceil(num_workers / len(cores))
    with contextlib.ExitStack() as undo:
        directory = pathlib.Path(undo.enter_context(tempfile.TemporaryDirectory()))
        environment = undo.enter_context(_rendezvous(network, per_host))
        processes = []
        for rank in range(num_workers):
            pin = ["taskset", "--cpu-list", str(cores[rank // workers_per_core])]
            process = subprocess.Popen(
                network.command(rank // per_host, [*pin, sys.executable, str(script), *arguments]),
                env=os.environ | environment | _worker_environment(network, rank, per_host),
                stdin=subprocess.DEVNULL,
                stdout=undo.enter_context(open(directory / f"{rank}.out", "w")),
                stderr=undo.enter_context(open(directory / f"{rank}.err", "w")),
            )
            undo.callback(_end, process)
            processes.append(process)
        _wait_for_all(processes, directory, timeout_seconds)
        outputs = [(directory / f"{rank}.out").read_text() for rank in range(num_workers)]
    return [json.loads(output.splitlines()[-1]) for output in outputs]


@contextlib.contextmanager
def _rendezvous(network, per_host):
    """Starts Horovod's rendezvous server on the bridge. Yields the variables that lead to it."""
    server = RendezvousServer()
    with network.inside(network.bridge_namespace):
        port = server.start()
    try:
        hosts = ",".join(f"{_host_name(i)}:{per_host}" for i in range(network.num_hosts))
        server.init(get_host_assignments(parse_hosts(hosts), network.num_hosts * per_host))
        yield {
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_IFACE": network.interface,
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": network.bridge_address,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        }
    finally:
        server.stop()


def _worker_environment(network, rank, per_host):
    num_workers = network.num_hosts * per_host
    host, place = divmod(rank, per_host)
    addresses = [
        f"{network.address(i // per_host)}:{_TENSORFLOW_PORT + i % per_host}"
        for i in range(num_workers)
    ]
    return tf_config(addresses, rank) | {
        "HOROVOD_HOSTNAME": _host_name(host),
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(num_workers),
        "HOROVOD_LOCAL_RANK": str(place),
        "HOROVOD_LOCAL_SIZE": str(per_host),
        "HOROVOD_CROSS_RANK": str(host),
        "HOROVOD_CROSS_SIZE": str(network.num_hosts),
    }


def _host_name(host):
    return f"host{host}"


def _wait_for_all(processes, directory, timeout_seconds):
    deadline = time.monotonic() + timeout_seconds
    while True:
        codes = [process.poll() for process in processes]
        for rank, code in enumerate(codes):
            if code:
                log = (directory / f"{rank}.err").read_text()[-4000:]
                raise RuntimeError(f"Worker {rank} ended with exit code {code}. Its log:\n{log}")
        if all(code == 0 for code in codes):
            return
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"The workers were not done after {timeout_seconds} seconds (exit codes {codes}). "
                "Use fewer --steps, or a faster --rate."
            )
        time.sleep(0.05)


def _end(process):
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
