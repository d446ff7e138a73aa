"""Builds the compiled operations with CMake and ninja; pyproject.toml has everything else.

`python setup.py build_ext --inplace` builds tf_onebit/libtf_onebit_ops.so in the checkout.
"""

import importlib.metadata
import os
import pathlib
import re
import shutil
import site
import subprocess
import sys
import sysconfig

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = pathlib.Path(__file__).resolve().parent
BUILD_DIR = ROOT / "build" / "custom_ops"
TENSORFLOW_SERIES = "2.21."
TENSORFLOW_DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu")


class CMakeBuild(build_ext):
    """Builds the one extension, which Python loads with `tf.load_op_library`."""

    def get_ext_filename(self, fullname):
        # It is a library of operations, not a Python module, so its name has no Python version.
        return str(pathlib.Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext):
        tensorflow_dir, tensorflow_version = find_tensorflow()
        cmake, ninja = find_program("cmake"), find_program("ninja")
        configure = [
            cmake,
            f"-S{ROOT / 'custom_ops'}",
            # The folder is always the same, even if setuptools works in a temporary one. So only
            # changes are compiled again.
            f"-B{BUILD_DIR}",
            "-GNinja",
            f"-DCMAKE_MAKE_PROGRAM={ninja}",
            f"-DTENSORFLOW_DIR={tensorflow_dir}",
            f"-DTENSORFLOW_VERSION={tensorflow_version}",
            f"-DTF_ONEBIT_VERSION={self.distribution.get_version()}",
        ]
        for command in (configure, [cmake, "--build", BUILD_DIR]):
            if subprocess.run(command).returncode != 0:
                sys.exit("error: the operations could not be compiled, see the output above.")
        library = pathlib.Path(self.get_ext_fullpath(ext.name))
        library.parent.mkdir(parents=True, exist_ok=True)
        # A process that has loaded the old library keeps it. Its pages must not change.
        new_library = library.with_suffix(".new")
        shutil.copyfile(BUILD_DIR / library.name, new_library)
        new_library.replace(library)


def find_tensorflow():
    """Returns the folder and the version of the installed TensorFlow, without importing it.

    pip's build isolation takes site-packages out of `sys.path`. `sysconfig` and `site` still name
    the site-packages of the Python that the package is installed for.
    """
    paths = sysconfig.get_paths()
    search_path = [*sys.path, paths["purelib"], paths["platlib"], site.getusersitepackages()]
    for distribution in importlib.metadata.distributions(path=search_path):
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"] or "").lower()
        tensorflow_dir = pathlib.Path(distribution.locate_file("tensorflow"))
        if name in TENSORFLOW_DISTRIBUTIONS and tensorflow_dir.is_dir():
            break
    else:
        sys.exit(
            f"error: TensorFlow is not installed for {sys.executable}, and tf_onebit's operations "
            f"are compiled against TensorFlow {TENSORFLOW_SERIES}x.\n"
            "Install it first: python -m pip install tensorflow==2.21.0    "
            "(or tensorflow-cpu==2.21.0)\n"
            "If it is installed where an isolated build does not look, repeat the command with: "
            "--no-build-isolation"
        )
    if not distribution.version.startswith(TENSORFLOW_SERIES):
        sys.exit(
            f"error: tf_onebit's operations are compiled against TensorFlow {TENSORFLOW_SERIES}x. "
            f"Received: {name} {distribution.version} in {tensorflow_dir}.\n"
            f"Install a supported version first: python -m pip install {name}==2.21.0"
        )
    return tensorflow_dir, distribution.version


def find_program(name):
    """Finds CMake or ninja, which PyPI's packages put beside this Python or on its PATH."""
    search_path = os.pathsep.join((sysconfig.get_path("scripts"), os.environ.get("PATH", "")))
    program = shutil.which(name, path=search_path)
    if program is None:
        sys.exit(
            f"error: {name} not found, and tf_onebit's operations are built with it.\n"
            "Install it first: python -m pip install 'cmake<4' ninja"
        )
    return program


setup(
    ext_modules=[Extension("tf_onebit.libtf_onebit_ops", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
)
