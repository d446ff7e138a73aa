"""Needs of a clean machine that installs the package."""

import importlib.metadata
import pathlib
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = pathlib.Path(__file__).parents[2]


def pinned():
    """Names of all packages that the environment of the tests is made of."""
    files = ("requirements.txt", "requirements-lock.txt")
    lines = "\n".join((ROOT / file).read_text() for file in files).splitlines()
    pins = filter(None, (line.split("#")[0].strip() for line in lines))
    return sorted({Requirement(pin).name for pin in pins})


@pytest.mark.parametrize("package", pinned())
def test_pinned_packages_take_every_python_that_the_package_takes(package):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (lowest,) = SpecifierSet(project["requires-python"])
    required = importlib.metadata.metadata(package).get("Requires-Python", "")
    assert SpecifierSet(required).contains(f"{lowest.version}.0"), required
