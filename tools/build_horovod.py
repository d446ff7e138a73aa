"""Builds Horovod 0.28.1 for TensorFlow 2.21 and installs it beside the running Python.

Horovod's source distribution compiles against TensorFlow 2.21 except for its optional XLA
operations, whose headers TensorFlow no longer ships. This program fetches that distribution with
pip. It leaves the XLA operations out, and lets Gloo send in both directions of a link at once. Then
it builds a wheel with TensorFlow and Gloo, and without MPI, PyTorch and MXNet. It installs the
wheel and checks that it works. The wheel is kept in a cache outside of the checkout, so that only
the first run for a combination of versions takes minutes. Its version names the TensorFlow that it
is for: 0.28.1+tf2.21.

    .venv/bin/python tools/build_horovod.py

With `--wheel-dir dist` it also copies the wheel there, for machines without a compiler.

With `--gpu` its collectives take tensors of GPUs without a copy, through NCCL. This is for
`tensorflow`, not `tensorflow-cpu`. It needs nvcc, and NCCL, which
`pip install "tensorflow[and-cuda]"` installs.
"""

import argparse
import dataclasses
import importlib.metadata
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile

HOROVOD_VERSION = "0.28.1"
TENSORFLOW_DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu")
# The packages that Horovod's build and its launcher import. The build would otherwise fetch missing
# ones without pip's knowledge.
REQUIRED_DISTRIBUTIONS = (
    "setuptools",
    "wheel",
    "cmake",
    "packaging",
    "psutil",
    "pyyaml",
    "cloudpickle",
)
SYSTEM_PROGRAMS = ("g++", "make")
XLA_SOURCE = "horovod/tensorflow/xla_mpi_ops.cc"

# Gloo sends data when it is told that the receiver is ready, over the same connection. A worker
# that receives only after a large send says so when the send is over. Then the two directions of a
# link take turns. So these changes make it receive first. By file: the statements that send and
# receive, their replacement, and the number of places.
DUPLEX = "duplex"
RECEIVE_FIRST = {
    "third_party/gloo/gloo/alltoallv.cc": [
        (
            r"(\n *in->send\([^;]*;)(\n *out->recv\([^;]*;)",
            r"""\2
  }
  for (int i = 1; i < worldSize; i++) {
    int sendRank = (myRank + i) % worldSize;\1""",
            1,
        )
    ],
    "third_party/gloo/gloo/allgatherv.cc": [
        (r"(\n *out->send\([^;]*;)(\n *out->recv\([^;]*;)", r"\2\1", 2)
    ],
}
# Python 3.12 no longer has distutils.
WITHOUT_DISTUTILS = {
    "horovod/runner/js_run.py": [
        (
            r"from distutils\.spawn import find_executable",
            "from shutil import which as find_executable",
            1,
        )
    ],
}
# Version 14 of g++ no longer includes these headers with <functional>, and finds an assignment to
# constants in a template that nobody uses.
GCC_14 = {
    "horovod/common/common.h": [(r"#include <memory>\n", r"\g<0>#include <stdexcept>\n", 1)],
    "horovod/common/group_table.h": [(r"#include <queue>\n", r"\g<0>#include <string>\n", 1)],
    "third_party/flatbuffers/include/flatbuffers/stl_emulation.h": [
        (r"pointer const (data_;\s+)const (size_type count_;)", r"pointer \1\2", 1)
    ],
}
# TensorFlow has moved the header of its streams, and streams now return their handle themselves.
# nvcc 13 does not support C++ older than 17.
GPU_STREAMS = {
    "horovod/tensorflow/mpi_ops.cc": [
        (r'"tensorflow/compiler/(xla/stream_executor/stream\.h")', r'"\1', 1),
        (r"\nnamespace stream_executor \{\nnamespace gpu \{\n[^}]*\}[^}]*\}[^\n]*", "", 1),
        (
            r"stream_executor::gpu::AsGpuStreamValue\(\s*(device_context->stream\(\))\)",
            r"static_cast<GpuStreamHandle>(\1->platform_specific_handle().stream)",
            None,
        ),
    ],
    "horovod/common/ops/cuda/CMakeLists.txt": [
        (r"set\(CMAKE_CUDA_STANDARD 11\)", "set(CMAKE_CUDA_STANDARD 17)", 1)
    ],
}

BUILD_SETTINGS = {
    "HOROVOD_WITH_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_PYTORCH": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
}


class BuildError(Exception):
    """A failure that the user can remedy."""


def main():
    parser = argparse.ArgumentParser(
        description=f"Builds and installs Horovod {HOROVOD_VERSION} for the installed TensorFlow."
    )
    parser.add_argument(
        "--cache-dir",
        type=pathlib.Path,
        default=cache_folder("horovod"),
        help="where built wheels are kept (default: %(default)s)",
    )
    parser.add_argument(
        "--wheel-dir", type=pathlib.Path, help="where the wheel is copied to (default: nowhere)"
    )
    parser.add_argument("--gpu", action="store_true", help="with collectives on GPUs, through NCCL")
    arguments = parser.parse_args()
    try:
        wheel = install_horovod(arguments.cache_dir, arguments.gpu)
        if arguments.wheel_dir is not None:
            arguments.wheel_dir.mkdir(parents=True, exist_ok=True)
            print(f"Copied to {shutil.copy(wheel, arguments.wheel_dir)}")
    except BuildError as error:
        sys.exit(f"error: {error}")


def install_horovod(cache_dir, gpu=False):
    """Installs Horovod from the cache, or builds it first. Returns the path of its wheel.

    Only a wheel that works is cached.

    Args:
        cache_dir: path of the cache.
        gpu: whether its collectives run on GPUs.
    """
    require_address()
    nccl = find_nccl() if gpu else None
    entry_dir = cache_dir / cache_key(nccl)
    cached_wheels = sorted(entry_dir.glob("horovod-*.whl"))
    if cached_wheels:
        print(f"Installing the cached {cached_wheels[0]}", flush=True)
        try:
            install(cached_wheels[0])
            verify(gpu)
        except BuildError as error:
            raise BuildError(
                f"{error}\nThe wheel came from the cache. To build it afresh: rm -r {entry_dir}"
            ) from error
        return cached_wheels[0]
    check_prerequisites()
    entry_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="build_horovod_") as build_dir:
        wheel = build_wheel(pathlib.Path(build_dir), nccl)
        install(wheel)
        verify(gpu)
        # An interrupted copy must not look like a wheel.
        partial = shutil.copyfile(wheel, entry_dir / f"{wheel.name}.{os.getpid()}.partial")
        cached_wheel = entry_dir / wheel.name
        os.replace(partial, cached_wheel)
    print(f"Horovod {HOROVOD_VERSION} is installed; its wheel is kept in {entry_dir}")
    return cached_wheel


def require_address():
    """Raises BuildError if Horovod would end with a segmentation fault in `verify`."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except socket.gaierror:
        raise BuildError(
            f"no address is found for this machine's name, {name!r}, and Horovod needs one.\n"
            f"Add this line to /etc/hosts: 127.0.1.1 {name}"
        ) from None


def cache_folder(name):
    """Returns the default folder for what takes long to fetch or to build, outside of checkouts."""
    cache_home = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(cache_home) / "tf_onebit" / name


def cache_key(nccl=None):
    """Returns a name for everything that the compiled library depends on."""
    return "-".join(
        (
            f"horovod_{HOROVOD_VERSION}+{local_version()}_{DUPLEX}",
            f"tensorflow_{tensorflow_version()}",
            sys.implementation.cache_tag,
            sysconfig.get_platform(),
            *([] if nccl is None else [f"nccl_{nccl.version}", f"cuda_{cuda_version()}"]),
        )
    )


def tensorflow_version():
    for distribution in TENSORFLOW_DISTRIBUTIONS:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    raise BuildError(
        f"TensorFlow is not installed for {sys.executable}, and Horovod is built against it.\n"
        f"Install it first: {sys.executable} -m pip install tensorflow-cpu==2.21.0"
    )


def local_version():
    """Returns what the wheel's version adds to Horovod's: the TensorFlow that it is for."""
    return "tf" + ".".join(tensorflow_version().split(".")[:2])


def check_prerequisites():
    missing_programs = [name for name in SYSTEM_PROGRAMS if shutil.which(name) is None]
    if missing_programs:
        raise BuildError(
            f"{' and '.join(missing_programs)} not found, and Horovod is compiled with them.\n"
            "Install them, on Debian and Ubuntu: sudo apt-get install g++ make"
        )
    installed = {dist.name.lower() for dist in importlib.metadata.distributions() if dist.name}
    missing = [name for name in REQUIRED_DISTRIBUTIONS if name not in installed]
    if missing:
        packages = " ".join("'cmake<4'" if name == "cmake" else name for name in missing)
        raise BuildError(
            f"Horovod's build needs Python packages that are not installed: {', '.join(missing)}.\n"
            f"Install them first: {sys.executable} -m pip install {packages}"
        )


@dataclasses.dataclass(frozen=True)
class Nccl:
    """NCCL as a package of this Python."""

    version: str
    include_dir: pathlib.Path
    library: pathlib.Path


def find_nccl():
    for distribution in importlib.metadata.distributions():
        if (distribution.name or "").lower().startswith("nvidia-nccl-cu"):
            folder = pathlib.Path(distribution.locate_file("nvidia/nccl"))
            libraries = sorted((folder / "lib").glob("libnccl.so.*"))
            if libraries:
                return Nccl(distribution.version, folder / "include", libraries[0])
    raise BuildError(
        f"NCCL is not installed for {sys.executable}, and --gpu needs it.\n"
        "Install it first, with the TensorFlow that uses GPUs: "
        f'{sys.executable} -m pip install "tensorflow[and-cuda]==2.21.0"'
    )


def cuda_version():
    """Returns the version of nvcc, for example "13.0"."""
    if shutil.which("nvcc") is None:
        raise BuildError(
            "nvcc not found, and --gpu needs it.\n"
            "Install the CUDA toolkit, 12.0 or later, and put its nvcc on the PATH."
        )
    text = subprocess.run(["nvcc", "--version"], capture_output=True, text=True).stdout
    return re.search(r"release ([\d.]+)", text)[1]


def build_wheel(build_dir, nccl=None):
    print(
        f"Building Horovod {HOROVOD_VERSION} for TensorFlow {tensorflow_version()};"
        " this takes some minutes",
        flush=True,
    )
    source_dir = download_source(build_dir)
    leave_out_xla_operations(source_dir)
    substitute(source_dir, RECEIVE_FIRST)
    substitute(source_dir, WITHOUT_DISTUTILS)
    substitute(source_dir, GCC_14)
    environment = build_environment() | {"HOROVOD_LOCAL_VERSION": local_version()}
    if nccl is not None:
        substitute(source_dir, GPU_STREAMS)
        environment |= gpu_settings(build_dir, nccl)
    wheel_dir = build_dir / "wheel"
    pip(
        "wheel",
        "--no-cache-dir",
        "--no-build-isolation",
        "--no-deps",
        f"--wheel-dir={wheel_dir}",
        str(source_dir),
        env=environment,
    )
    (wheel,) = wheel_dir.glob("horovod-*.whl")
    return wheel


def download_source(build_dir):
    pip(
        "download",
        "--no-binary=horovod",
        "--no-build-isolation",
        "--no-deps",
        f"--dest={build_dir}",
        f"horovod=={HOROVOD_VERSION}",
        env=build_environment(),
    )
    name = f"horovod-{HOROVOD_VERSION}"
    shutil.unpack_archive(build_dir / f"{name}.tar.gz", build_dir)
    return build_dir / name


def leave_out_xla_operations(source_dir):
    cmake_lists = source_dir / "horovod" / "tensorflow" / "CMakeLists.txt"
    lines = cmake_lists.read_text().splitlines(keepends=True)
    kept = [line for line in lines if XLA_SOURCE not in line]
    if len(kept) != len(lines) - 1:
        raise BuildError(
            f"{XLA_SOURCE} should be named once in Horovod's {cmake_lists.name}. "
            f"Received: {len(lines) - len(kept)} times. Is this Horovod {HOROVOD_VERSION}?"
        )
    cmake_lists.write_text("".join(kept))


def substitute(source_dir, substitutions):
    """Changes files by regular expressions: see RECEIVE_FIRST. None means any number of places."""
    for name, changes in substitutions.items():
        text = (source_dir / name).read_text()
        for pattern, replacement, expected in changes:
            text, count = re.subn(pattern, replacement, text)
            if count != expected and (expected is not None or count == 0):
                raise BuildError(
                    f"{name} should have {expected or 'some'} places like {pattern!r}. "
                    f"Received: {count} places. Is this Horovod {HOROVOD_VERSION}?"
                )
        (source_dir / name).write_text(text)


def gpu_settings(build_dir, nccl):
    """Returns the settings of the build for GPUs."""
    # The linker looks for a name without a version, which the package does not have.
    library_dir = build_dir / "nccl"
    library_dir.mkdir()
    (library_dir / "libnccl.so").symlink_to(nccl.library)
    # The nvcc on the PATH may be a script that calls another.
    plan = subprocess.run(
        ["nvcc", "--dryrun", "-x", "cu", os.devnull], capture_output=True, text=True
    )
    cuda_home = re.search(r"\bTOP=(.+)", plan.stderr)[1]
    return {
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "HOROVOD_CUDA_HOME": os.path.realpath(cuda_home),
        "HOROVOD_NCCL_INCLUDE": str(nccl.include_dir),
        "HOROVOD_NCCL_LIB": str(library_dir),
        "HOROVOD_NCCL_LINK": "SHARED",
        "LDFLAGS": f"-Wl,-rpath,{nccl.library.parent}",
    }


def build_environment():
    """Returns the caller's environment, with this build's settings only and this Python's CMake."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HOROVOD_")}
    environment |= BUILD_SETTINGS
    environment["PATH"] = os.pathsep.join((sysconfig.get_path("scripts"), os.environ["PATH"]))
    # This also replaces the setting of an outer `make`, which is meant for its own children.
    environment["MAKEFLAGS"] = f"-j{len(os.sched_getaffinity(0))}"
    return environment


def install(wheel):
    pip("install", "--quiet", "--force-reinstall", "--no-deps", str(wheel))


def pip(*arguments, env=None):
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    if subprocess.run(command, env=env).returncode != 0:
        raise BuildError(f"this command failed, see its output above: {' '.join(command)}")


def verify(gpu):
    """Checks that Horovod's launcher and its operations load, and that they can communicate."""
    program = (
        "import horovod.runner.launch, horovod.tensorflow as hvd\n"
        "hvd.init()\n"
        "print('gloo_built', hvd.gloo_built(), 'nccl_built', bool(hvd.nccl_built()), hvd.size())"
    )
    # From the root, so that nothing in the current folder hides an installed module.
    result = subprocess.run(
        [sys.executable, "-c", program], cwd="/", text=True, capture_output=True
    )
    if f"gloo_built True nccl_built {gpu} 1" not in result.stdout:
        raise BuildError(f"the installed Horovod does not work:\n{result.stdout}{result.stderr}")


if __name__ == "__main__":
    main()
