"""Builds the compiled operations with CMake and ninja; pyproject.toml has everything else.

TensorFlow's binary interface changes with every minor version, so there is one library for each:
tf_onebit/libtf_onebit_ops_2_21.so is for TensorFlow 2.21. `python setup.py build_ext --inplace`
builds that of the installed TensorFlow in the checkout.

The environment variable TF_ONEBIT_BUILD_FOR names other folders, each with a TensorFlow, separated
by colons. A library is built for each of these. tools/build_wheel.py uses this.
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
import tomllib

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = pathlib.Path(__file__).resolve().parent
TENSORFLOW_DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TENSORFLOW_VERSIONS = PYPROJECT["tool"]["tf_onebit"]["tensorflow"]


def minor_version(version):
    """Returns the minor version that a version belongs to.

    >>> minor_version("2.21.0")
    '2.21'
    """
    return ".".join(version.split(".")[:2])


SUPPORTED = [minor_version(version) for version in TENSORFLOW_VERSIONS]


class CMakeBuild(build_ext):
    """Builds a library for each TensorFlow, which Python loads with `tf.load_op_library`."""

    def run(self):
        self.tensorflow_dirs = find_tensorflows()
        self.extensions = [e for e in self.extensions if e.tensorflow_minor in self.tensorflow_dirs]
        super().run()

    def get_ext_filename(self, fullname):
        # It is a library of operations, not a Python module, so its name has no Python version.
        return str(pathlib.Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext):
        # The folder is always the same, even if setuptools works in a temporary one. So only
        # changes are compiled again.
        build_dir = ROOT / "build" / f"custom_ops_{ext.tensorflow_minor}"
        cmake, ninja = find_program("cmake"), find_program("ninja")
        configure = [
            cmake,
            f"-S{ROOT / 'custom_ops'}",
            f"-B{build_dir}",
            "-GNinja",
            f"-DCMAKE_MAKE_PROGRAM={ninja}",
            f"-DTENSORFLOW_DIR={self.tensorflow_dirs[ext.tensorflow_minor]}",
            f"-DTENSORFLOW_VERSION={ext.tensorflow_minor}",
            f"-DTF_ONEBIT_VERSION={self.distribution.get_version()}",
        ]
        for command in (configure, [cmake, "--build", build_dir]):
            if subprocess.run(command).returncode != 0:
                sys.exit("error: the operations could not be compiled, see the output above.")
        library = pathlib.Path(self.get_ext_fullpath(ext.name))
        library.parent.mkdir(parents=True, exist_ok=True)
        # A process that has loaded the old library keeps it. Its pages must not change.
        new_library = library.with_suffix(".new")
        shutil.copyfile(build_dir / "libtf_onebit_ops.so", new_library)
        new_library.replace(library)


class Library(Extension):
    """The compiled operations for one minor version of TensorFlow."""

    def __init__(self, tensorflow_minor):
        name = f"tf_onebit.libtf_onebit_ops_{tensorflow_minor.replace('.', '_')}"
        super().__init__(name, sources=[])
        self.tensorflow_minor = tensorflow_minor


class AnyPythonWheel(bdist_wheel):
    """Makes a wheel for every Python 3: the libraries call no function of Python."""

    def get_tag(self):
        _, _, platform = super().get_tag()
        return "py3", "none", platform


def find_tensorflows():
    """Returns the folder of each TensorFlow to build for, by its minor version."""
    folders = os.environ.get("TF_ONEBIT_BUILD_FOR")
    if folders:
        return dict(find_tensorflow([folder]) for folder in folders.split(os.pathsep))
    # pip's build isolation takes site-packages out of `sys.path`. `sysconfig` and `site` still
    # name the site-packages of the Python that the package is installed for.
    paths = sysconfig.get_paths()
    installed = [*sys.path, paths["purelib"], paths["platlib"], site.getusersitepackages()]
    return dict([find_tensorflow(installed)])


def find_tensorflow(search_path):
    """Finds a TensorFlow without importing it. Returns its minor version and its folder."""
    for distribution in importlib.metadata.distributions(path=search_path):
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"] or "").lower()
        tensorflow_dir = pathlib.Path(distribution.locate_file("tensorflow"))
        if name in TENSORFLOW_DISTRIBUTIONS and tensorflow_dir.is_dir():
            break
    else:
        sys.exit(
            f"error: TensorFlow is not installed for {sys.executable}, and tf_onebit's operations "
            f"are compiled against TensorFlow {' or '.join(SUPPORTED)}.\n"
            f"Install it first: python -m pip install tensorflow=={TENSORFLOW_VERSIONS[-1]}    "
            f"(or tensorflow-cpu=={TENSORFLOW_VERSIONS[-1]})\n"
            "If it is installed where an isolated build does not look, repeat the command with: "
            "--no-build-isolation"
        )
    if minor_version(distribution.version) not in SUPPORTED:
        sys.exit(
            "error: tf_onebit's operations are compiled against TensorFlow "
            f"{' or '.join(SUPPORTED)}. "
            f"Received: {name} {distribution.version} in {tensorflow_dir}.\n"
            "Install a supported version first: "
            f"python -m pip install {name}=={TENSORFLOW_VERSIONS[-1]}"
        )
    return minor_version(distribution.version), tensorflow_dir


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
    ext_modules=[Library(tensorflow_minor) for tensorflow_minor in SUPPORTED],
    cmdclass={"build_ext": CMakeBuild, "bdist_wheel": AnyPythonWheel},
)
