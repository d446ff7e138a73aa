"""The needs of a clean machine that installs the package."""

import importlib.metadata
import os
import pathlib
import runpy
import shutil
import socket
import subprocess
import sys
import tarfile
import tomllib

import pytest
import setuptools
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = pathlib.Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PYTHONS = ("3.11", "3.12", "3.13")


def pinned():
    """Returns the requirements of the tests' environment: dictionary of name and version."""
    files = ("requirements.txt", "requirements-lock.txt")
    lines = "\n".join((ROOT / file).read_text() for file in files).splitlines()
    pins = filter(None, (line.split("#")[0].strip() for line in lines))
    return {
        requirement.name: str(requirement.specifier).removeprefix("==")
        for requirement in map(Requirement, pins)
    }


def test_pinned_packages_take_every_python_that_the_package_takes():
    assert all(f"{v}.0" in SpecifierSet(PYPROJECT["project"]["requires-python"]) for v in PYTHONS)
    packages = sorted(pinned())
    required = {
        package: importlib.metadata.metadata(package).get("Requires-Python", "")
        for package in packages
    }
    assert packages
    refusing = [
        package
        for package in packages
        if not all(f"{version}.0" in SpecifierSet(required[package]) for version in PYTHONS)
    ]
    assert refusing == [], required


def test_wheels_have_a_library_for_the_tensorflow_of_the_tests():
    tensorflows = PYPROJECT["tool"]["tf_onebit"]["tensorflow"]
    assert tensorflows == sorted(tensorflows, key=lambda v: tuple(map(int, v.split("."))))
    assert tensorflows[-1] == pinned()["tensorflow-cpu"]


@pytest.fixture
def build_horovod(monkeypatch):
    """Returns the program that builds Horovod."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    import build_horovod

    return build_horovod


def test_the_extra_horovod_is_what_the_tool_builds(build_horovod):
    (requirement,) = PYPROJECT["project"]["optional-dependencies"]["horovod"]
    version = f"{build_horovod.HOROVOD_VERSION}+{build_horovod.local_version()}"
    assert requirement == f"horovod=={version}"


def test_horovod_is_not_built_where_it_could_not_start(build_horovod, monkeypatch, tmp_path):
    def without_address(*_):
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", without_address)
    with pytest.raises(build_horovod.BuildError, match="/etc/hosts: 127.0.1.1 "):
        build_horovod.install_horovod(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def setup_program(monkeypatch):
    """Returns the names in setup.py, which builds nothing."""
    monkeypatch.setattr(setuptools, "setup", lambda **_: None)
    return runpy.run_path(str(ROOT / "setup.py"))


def site_packages(folder, name, version):
    """Makes a folder in which a TensorFlow seems to be installed."""
    (folder / "tensorflow").mkdir(parents=True)
    metadata = folder / f"{name.replace('-', '_')}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


def test_a_library_is_built_for_each_tensorflow_that_is_named(setup_program, tmp_path, monkeypatch):
    folders = [
        site_packages(tmp_path / "old", "tensorflow-cpu", "2.20.1"),
        site_packages(tmp_path / "new", "tensorflow", "2.21.0"),
    ]
    monkeypatch.setenv("TF_ONEBIT_BUILD_FOR", os.pathsep.join(map(str, folders)))
    assert setup_program["find_tensorflows"]() == {
        "2.20": folders[0] / "tensorflow",
        "2.21": folders[1] / "tensorflow",
    }


def test_no_other_library_is_built_or_copied(setup_program, tmp_path, monkeypatch):
    folder = site_packages(tmp_path, "tensorflow-cpu", "2.20.0")
    monkeypatch.setenv("TF_ONEBIT_BUILD_FOR", str(folder))
    built = []

    class Build(setup_program["CMakeBuild"]):
        def build_extension(self, ext):
            built.append(ext.name)

    libraries = [setup_program["Library"](minor) for minor in setup_program["SUPPORTED"]]
    command = Build(setuptools.Distribution({"name": "any", "ext_modules": libraries}))
    command.ensure_finalized()
    command.run()
    assert built == ["tf_onebit.libtf_onebit_ops_2_20"]
    # These are copied into the checkout, even those of an earlier build.
    assert [pathlib.Path(path).name for path in command.get_outputs()] == [
        "libtf_onebit_ops_2_20.so"
    ]


def test_a_library_is_built_for_the_installed_tensorflow(setup_program, monkeypatch):
    monkeypatch.delenv("TF_ONEBIT_BUILD_FOR", raising=False)
    assert list(setup_program["find_tensorflows"]()) == ["2.21"]


def test_a_build_for_an_unsupported_tensorflow_ends_with_what_to_install(setup_program, tmp_path):
    folder = site_packages(tmp_path, "tensorflow-cpu", "2.17.1")
    with pytest.raises(SystemExit) as error:
        setup_program["find_tensorflow"]([str(folder)])
    assert f"Received: tensorflow-cpu 2.17.1 in {folder}" in str(error.value)
    assert "2.21. Received" in str(error.value)
    assert "python -m pip install tensorflow-cpu==2.21.0" in str(error.value)


def test_a_build_without_tensorflow_ends_with_what_to_install(setup_program, tmp_path):
    with pytest.raises(SystemExit, match="TensorFlow is not installed for") as error:
        setup_program["find_tensorflow"]([str(tmp_path)])
    assert "python -m pip install tensorflow==2.21.0" in str(error.value)


def test_the_source_distribution_has_all_that_compiles_and_no_compiled_file(tmp_path):
    command = [sys.executable, "setup.py", "--quiet", "egg_info", f"--egg-base={tmp_path}"]
    command += ["sdist", f"--dist-dir={tmp_path}"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    folders = ("custom_ops", "tf_onebit", "tools")
    listing = subprocess.run(
        ["git", "ls-files", *folders], cwd=ROOT, check=True, capture_output=True, text=True
    )
    committed = set(listing.stdout.split())
    assert len(committed) > 100
    assert committed - names == set()
    assert [name for name in names if name.endswith((".so", ".pyc"))] == []


def make_with(tmp_path, *pythons, without_venv=()):
    """Runs the rule for .venv with no other Python than these. Returns the job."""
    for name in ("Makefile", "requirements.txt", "requirements-lock.txt"):
        shutil.copy(ROOT / name, tmp_path)
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("sh", "sed", "find", "g++"):
        (programs / name).symlink_to(shutil.which(name))
    for python in (*pythons, *without_venv):
        program = programs / python
        status = int(python in without_venv)
        # It ends with an error if it should make an environment.
        program.write_text(
            f'#!/bin/sh\n[ "$1" = -c ] && exit {status}\necho {python} "$@"\nexit 1\n'
        )
        program.chmod(0o755)
    return subprocess.run(
        [shutil.which("make"), ".venv/.requirements"],
        cwd=tmp_path,
        env={"PATH": str(programs)},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    "pythons, chosen",
    [
        (["python3.13"], "python3.13"),
        (["python3.13", "python3.12"], "python3.12"),
        (["python3.14", "python3.12", "python3.11"], "python3.11"),
    ],
)
def test_make_takes_the_first_supported_python(tmp_path, pythons, chosen):
    job = make_with(tmp_path, *pythons)
    assert f"{chosen} -m venv .venv" in job.stdout
    assert "Installing TensorFlow" in job.stdout


def test_make_passes_over_a_python_without_venv(tmp_path):
    job = make_with(tmp_path, "python3.13", without_venv=["python3.11"])
    assert "python3.13 -m venv .venv" in job.stdout


@pytest.mark.parametrize("pythons", [[], ["python3.10", "python3.14"]])
def test_make_without_a_supported_python_says_what_to_install(tmp_path, pythons):
    job = make_with(tmp_path, *pythons)
    assert job.returncode != 0
    assert "error: no Python 3.11, 3.12 or 3.13 with its module venv found" in job.stderr
    assert "sudo apt-get install python3 python3-venv" in job.stderr
