"""The report's lines about Horovod and NCCL."""

import ctypes
import dataclasses
import importlib.metadata
import os
import socket

from tf_onebit._doctor.fault import Fault

_BUILD = "python tools/build_horovod.py, in the source folder of tf_onebit"
_INSTALL = (
    f"{_BUILD}. Without a compiler, install a wheel that `make wheel` has built elsewhere: "
    'python -m pip install "tf_onebit[horovod]" --find-links FOLDER'
)
_TRANSPORTS = ("mpi", "gloo", "nccl", "ddl", "ccl")
# In the order in which Horovod chooses by default.
_CPU_OPERATIONS = ("mpi", "gloo", "ccl")


@dataclasses.dataclass(frozen=True)
class HorovodFacts:
    """Facts about an installed Horovod.

    Attributes:
        built: tuple of its parts among mpi, gloo, nccl, ddl and ccl.
        nccl_built: version of the NCCL that it is built with, "" without.
        nccl_library: version of the NCCL that is loaded at run time, "" without.
        cpu_operations: the environment variable HOROVOD_CPU_OPERATIONS, or None.
        built_by_tool: whether tools/build_horovod.py has built it.
        gpus: number of GPUs that TensorFlow sees.
    """

    built: tuple
    nccl_built: str = ""
    nccl_library: str = ""
    cpu_operations: str | None = None
    built_by_tool: bool = True
    gpus: int = 0


def horovod_report():
    """Yields the lines about Horovod and NCCL."""
    try:
        version = importlib.metadata.version("horovod")
    except importlib.metadata.PackageNotFoundError:
        yield f"Horovod: not installed. Jobs of horovodrun need it: {_INSTALL}"
        return
    try:
        import horovod.tensorflow as hvd
    except Exception as error:  # a build for another TensorFlow can raise anything
        yield Fault(
            f"Horovod {version} does not load with TensorFlow: {error}. Install one for the "
            f"installed TensorFlow: {_INSTALL}"
        )
        return
    yield from horovod_lines(version, horovod_facts(hvd))
    yield from host_name_faults()


def horovod_facts(hvd):
    """Returns the `HorovodFacts` of this installation.

    Args:
        hvd: the module `horovod.tensorflow`.
    """
    import tensorflow as tf

    return HorovodFacts(
        built=tuple(name for name in _TRANSPORTS if getattr(hvd, f"{name}_built")()),
        nccl_built=nccl_version(hvd.nccl_built()),
        nccl_library=_nccl_library_version(),
        cpu_operations=os.environ.get("HOROVOD_CPU_OPERATIONS"),
        built_by_tool=is_built_by_tool(importlib.metadata.version("horovod")),
        gpus=len(tf.config.list_physical_devices("GPU")),
    )


def horovod_lines(version, facts):
    """Yields the lines about an installed Horovod.

    Args:
        version: of Horovod.
        facts: `HorovodFacts`.
    """
    without = [name for name in _TRANSPORTS if name not in facts.built]
    yield (
        f"Horovod: {version}, built with {', '.join(facts.built) or 'nothing'}; "
        f"without {', '.join(without)}"
    )
    usable = [name for name in _CPU_OPERATIONS if name in facts.built]
    wanted = facts.cpu_operations
    if wanted and wanted.lower() not in usable:
        yield Fault(
            f"Horovod is not built with HOROVOD_CPU_OPERATIONS={wanted!r}. Unset it, or set it to "
            f"one of: {', '.join(usable)}"
        )
    elif usable:
        yield f"Horovod's operations on the CPU: {wanted or usable[0]}"
    else:
        yield Fault(f"Horovod has no operations on the CPU. Build it with Gloo: {_BUILD}.")
    built, library = facts.nccl_built or "none", facts.nccl_library or "none"
    yield f"NCCL: {built} built into Horovod, {library} found by the loader"
    if facts.nccl_built and not facts.nccl_library:
        yield Fault(
            f"Horovod is built with NCCL {facts.nccl_built}, but libnccl.so.2 is not found. "
            'Install it: python -m pip install "tensorflow[and-cuda]==2.21.0"'
        )
    if facts.gpus and not facts.nccl_built:
        yield (
            "Not on a GPU: Horovod's collectives. They copy through the host's memory. Build it "
            "with NCCL: python tools/build_horovod.py --gpu, in the source folder of tf_onebit."
        )
    if not facts.built_by_tool:
        yield (
            "Slower than necessary: this Horovod was not built by tools/build_horovod.py. Its Gloo "
            "uses the two directions of a link in turns, so 1-bit messages take twice as long. "
            f"Build it: {_BUILD}."
        )


def host_name_faults():
    """Yields a fault if this machine's own name has no address.

    Gloo asks for that address, and the process ends with a segmentation fault if there is none.
    """
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        yield Fault(
            f"Jobs of horovodrun would end with a segmentation fault, because no address is found "
            f"for this machine's name, {name!r}. Add this line to /etc/hosts: 127.0.1.1 {name}"
        )


def nccl_version(code):
    """Returns the text of NCCL's number for a version, or "" for 0.

    >>> nccl_version(22803)
    '2.28.3'
    """
    if not code:
        return ""
    return f"{code // 10000}.{code % 10000 // 100}.{code % 100}"


def is_built_by_tool(version):
    """Tells whether tools/build_horovod.py has built a Horovod, which its version shows.

    >>> is_built_by_tool("0.28.1+tf2.21"), is_built_by_tool("0.28.1")
    (True, False)
    """
    return "+tf" in version


def _nccl_library_version():
    """Returns the version of the NCCL that this process loads, or "" without."""
    try:
        library = ctypes.CDLL("libnccl.so.2")
    except OSError:
        return ""
    code = ctypes.c_int(0)
    return nccl_version(code.value) if library.ncclGetVersion(ctypes.byref(code)) == 0 else ""
