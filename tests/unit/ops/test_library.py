"""The package's errors if its compiled library does not fit."""

import re
import shutil
import subprocess

import pytest

from tests.support.programs import ROOT, run_python
from tf_onebit.ops.library import PATH, load

LIBRARY = PATH.name
BUILD_COMMAND = "Build them with `make setup`, or `python setup.py build_ext --inplace`"
IMPORT = """
try:
    from tf_onebit import OneBit
except ImportError as error:
    print(error)
"""


@pytest.fixture
def package(tmp_path):
    """Returns a copy of the package, which tests damage."""
    ignored = shutil.ignore_patterns("__pycache__")
    return shutil.copytree(ROOT / "tf_onebit", tmp_path / "tf_onebit", ignore=ignored)


def import_error(package):
    status, output, errors = run_python(IMPORT, folder=package.parent, in_fork=True)
    assert status == 0, errors
    return output


def test_the_copied_package_imports(package):
    assert import_error(package) == ""


def test_a_missing_library_is_an_error_with_the_build_command(package):
    (package / LIBRARY).unlink()
    error = import_error(package)
    assert f"The compiled ops of tf_onebit are missing. Expected: {package / LIBRARY}." in error
    assert BUILD_COMMAND in error


def test_a_library_for_another_tensorflow_is_an_error_that_names_what_to_install(package):
    (package / LIBRARY).rename(package / "libtf_onebit_ops_2_20.so")
    error = import_error(package)
    assert "This tf_onebit has compiled ops for TensorFlow 2.20. Received: TensorFlow 2.21" in error
    assert 'Install a version that fits: python -m pip install "tensorflow-cpu==2.20.*"' in error


def test_a_library_of_another_version_is_an_error_with_the_build_command(package):
    library = (package / LIBRARY).read_bytes()
    built = re.search(rb"version=[\d.]+ tensorflow=[\d.]+", library)[0]
    other = built.replace(b"tensorflow=2", b"tensorflow=1")
    assert other != built
    (package / LIBRARY).write_bytes(library.replace(built, other))
    error = import_error(package)
    assert "The compiled ops of tf_onebit are stale." in error
    assert f"Expected: {built.decode()}. Found: {other.decode()} in {package / LIBRARY}." in error
    assert BUILD_COMMAND in error


@pytest.mark.parametrize("kept", [0.0, 0.5])
def test_a_truncated_library_is_an_error_with_the_build_command(package, kept):
    library = (package / LIBRARY).read_bytes()
    (package / LIBRARY).write_bytes(library[: int(kept * len(library))])
    error = import_error(package)
    assert "The compiled ops of tf_onebit do not load" in error
    assert BUILD_COMMAND in error


def test_a_library_without_build_info_is_an_error_with_the_build_command(tmp_path):
    source, library = tmp_path / "other.cc", tmp_path / "other.so"
    source.write_text('extern "C" int other() { return 0; }\n')
    subprocess.run(["g++", "-shared", "-fPIC", source, "-o", library], check=True)
    with pytest.raises(ImportError, match=re.escape(BUILD_COMMAND)):
        load(library)
