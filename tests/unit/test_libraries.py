"""The package chooses the library of compiled ops by the version of TensorFlow."""

import pytest

from tests.support.programs import run_python
from tf_onebit import _libraries as libraries


@pytest.fixture
def wheel(tmp_path):
    """Returns a folder with libraries as in a wheel."""
    for minor in (9, 20, 21):
        (tmp_path / f"libtf_onebit_ops_2_{minor}.so").touch()
    (tmp_path / "libtf_onebit_ops.so").touch()  # of a checkout of version 0.1.0
    return tmp_path


@pytest.mark.parametrize("version", ["2.20.0", "2.20.3", "2.20.0-rc1", "2.20.0+nv25.9"])
def test_the_library_is_that_of_the_minor_version(wheel, version):
    assert libraries.library_path(version, wheel) == wheel / "libtf_onebit_ops_2_20.so"


@pytest.mark.parametrize("version", ["2.2.0", "2.17.1", "2.22.0", "3.21.0"])
def test_an_unsupported_tensorflow_is_an_error_that_names_what_to_install(wheel, version):
    with pytest.raises(ImportError) as error:
        libraries.library_path(version, wheel)
    message = str(error.value)
    assert "has compiled ops for TensorFlow 2.9, 2.20, 2.21." in message
    assert f"Received: TensorFlow {version}." in message
    assert 'python -m pip install "tensorflow-cpu==2.21.*"' in message
    assert '"tensorflow[and-cuda]==2.21.*"' in message
    assert "python setup.py build_ext --inplace" in message


def test_a_checkout_without_a_library_says_how_to_build_it(tmp_path):
    with pytest.raises(ImportError, match="are missing.*2_21.so.*`make setup`"):
        libraries.library_path("2.21.0", tmp_path)


WITHOUT = """
import sys
sys.modules[{missing!r}] = None
import tf_onebit
try:
    tf_onebit.{name}
except ImportError as error:
    print(type(error).__name__, error)
"""


def test_no_tensorflow_is_an_error_that_names_what_to_install():
    status, output, errors = run_python(WITHOUT.format(missing="tensorflow", name="OneBit"))
    assert status == 0, errors
    assert output.startswith("ImportError tf_onebit needs TensorFlow, which is not installed.")
    assert 'python -m pip install "tensorflow-cpu==2.' in output


def test_another_missing_package_is_not_taken_for_tensorflow():
    status, output, errors = run_python(WITHOUT.format(missing="keras", name="optimizers"))
    assert status == 0, errors
    assert output.startswith("ModuleNotFoundError import of keras halted")
