"""The needs of a clean machine that installs the package."""

import importlib.metadata
import pathlib
import tomllib

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = pathlib.Path(__file__).parents[2]


def pinned():
    """Returns the names of all packages in the environment of the tests."""
    files = ("requirements.txt", "requirements-lock.txt")
    lines = "\n".join((ROOT / file).read_text() for file in files).splitlines()
    pins = filter(None, (line.split("#")[0].strip() for line in lines))
    return sorted({Requirement(pin).name for pin in pins})


def test_pinned_packages_take_every_python_that_the_package_takes():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (lowest,) = SpecifierSet(project["requires-python"])
    packages = pinned()
    required = {
        package: importlib.metadata.metadata(package).get("Requires-Python", "")
        for package in packages
    }
    assert packages
    refusing = [p for p in packages if f"{lowest.version}.0" not in SpecifierSet(required[p])]
    assert refusing == [], required
