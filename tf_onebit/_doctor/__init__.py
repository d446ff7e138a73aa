"""`tf-onebit doctor`: a report on the installation, with a remedy for each fault."""

import argparse
import importlib.metadata
import os
import platform

from tf_onebit._doctor.fault import Fault
from tf_onebit._doctor.gpus import Gpu, GpuFacts, ops_report, reasons_against_gpus
from tf_onebit._doctor.horovod import horovod_report
from tf_onebit._libraries import install_command
from tf_onebit._start_up_notes import without_start_up_notes
from tf_onebit._version import __version__

__all__ = ["Gpu", "GpuFacts", "add_command", "doctor", "reasons_against_gpus"]

TENSORFLOW_DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu")
# Horovod's launcher starts workers by ssh.
_SSH_PORT = 22


def add_command(commands):
    """Adds `doctor` to the commands of an `argparse` parser."""
    parser = commands.add_parser(
        "doctor",
        help="check the installation, the GPUs and the reachable hosts",
        description="Shows what is installed, what the compiled ops are built for, and whether "
        "they would run on a GPU. If not, it gives the reason and a remedy. Shows what Horovod is "
        "built with. Checks TF_CONFIG if it is set, and tries to reach its workers and other "
        "hosts. Ends with status 1 if a check fails, except for GPUs and missing packages.",
    )
    parser.add_argument(
        "--hosts",
        nargs="+",
        type=_address,
        default=[],
        metavar="host[:port]",
        help=f"hosts to reach (default port: {_SSH_PORT}, for ssh, which horovodrun needs)",
    )
    parser.set_defaults(run=lambda options: doctor(options.hosts))


def doctor(hosts=()):
    """Prints the report, and returns 1 if a needed part does not work, otherwise 0.

    Args:
        hosts: list of `host:port` to reach besides the hosts of TF_CONFIG.
    """
    # TensorFlow's own notes would bury the report.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    status = 0
    for line in _report(hosts):
        print(line, flush=True)
        if isinstance(line, Fault):
            status = 1
    return status


def _report(hosts):
    yield f"tf_onebit {__version__}, Python {platform.python_version()}"
    yield ", ".join(_versions())
    try:
        with without_start_up_notes():
            import tensorflow  # noqa: F401
    except Exception as error:  # also from packages in versions that it cannot use
        yield Fault(
            f"TensorFlow does not load: {type(error).__name__}: {error}. Install it: "
            f"{install_command()}"
        )
        return
    # Imported here because it imports TensorFlow, which other commands do without.
    from tf_onebit._doctor.peers import peers_report

    yield from ops_report()
    yield from horovod_report()
    yield from peers_report(hosts)


def _versions():
    for name in (*TENSORFLOW_DISTRIBUTIONS, "keras", "numpy"):
        try:
            yield f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue


def _address(text):
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):  # [::1] is an address of IPv6
        return f"{text}:{_SSH_PORT}"
    if ":" in host and not host.endswith("]"):  # so is ::1, without a port
        return f"[{text}]:{_SSH_PORT}"
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise argparse.ArgumentTypeError(
            f"A host is given as host or host:port, with a port from 1 to 65535. Received: {text}"
        )
    return text
