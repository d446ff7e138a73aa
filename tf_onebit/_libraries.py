"""Libraries of compiled ops in this installation: one for each minor version of TensorFlow."""

import pathlib
import re

BUILD_COMMAND = "`make setup`, or `python setup.py build_ext --inplace`, in the source folder"
FOLDER = pathlib.Path(__file__).parent


def library_path(tensorflow_version: str, folder: pathlib.Path = FOLDER) -> pathlib.Path:
    """Returns the path of the library for a version of TensorFlow, for example "2.21.0".

    Raises:
        ImportError: if there is no such library.
    """
    major, minor = tensorflow_version.split(".")[:2]
    path = folder / f"libtf_onebit_ops_{major}_{minor}.so"
    if path.exists():
        return path
    supported = supported_tensorflows(folder)
    if not supported:
        raise ImportError(
            f"The compiled ops of tf_onebit are missing. Expected: {path}. Build them with "
            f"{BUILD_COMMAND}."
        )
    raise ImportError(
        f"This tf_onebit has compiled ops for TensorFlow {', '.join(supported)}. Received: "
        f"TensorFlow {tensorflow_version}. Install a version that fits: "
        f"{install_command(folder)}. Or build the ops for the installed one with {BUILD_COMMAND}."
    )


def supported_tensorflows(folder: pathlib.Path = FOLDER) -> list[str]:
    """Returns the minor versions of TensorFlow that have a library, for example ["2.21"]."""
    matches = [re.search(r"_(\d+)_(\d+)\.so$", path.name) for path in folder.glob("libtf_*.so")]
    versions = sorted((int(match[1]), int(match[2])) for match in matches if match)
    return [f"{major}.{minor}" for major, minor in versions]


def install_command(folder: pathlib.Path = FOLDER) -> str:
    """Returns the command that installs the newest TensorFlow that has a library."""
    version = "".join(f"=={newest}.*" for newest in supported_tensorflows(folder)[-1:])
    return (
        f'python -m pip install "tensorflow-cpu{version}" '
        f'(for GPUs: "tensorflow[and-cuda]{version}")'
    )
