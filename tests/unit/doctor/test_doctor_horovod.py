"""`tf-onebit doctor` reports on Horovod."""

import dataclasses
import importlib.metadata
import socket
import sys

import pytest

from tests.support.programs import ROOT
from tf_onebit._doctor import horovod as doctor
from tf_onebit._doctor.fault import Fault

GOOD = doctor.HorovodFacts(built=("gloo",))
WITH_NCCL = dataclasses.replace(
    GOOD, built=("gloo", "nccl"), nccl_built="2.28.3", nccl_library="2.29.1", gpus=8
)


@pytest.mark.parametrize("facts", [GOOD, WITH_NCCL])
def test_nothing_is_said_against_horovod_as_the_tool_builds_it(facts):
    lines = list(doctor.horovod_lines("0.28.1", facts))
    assert not [line for line in lines if isinstance(line, Fault)]
    assert len(lines) == 3
    assert lines[0].startswith(f"Horovod: 0.28.1, built with {', '.join(facts.built)}; without mpi")
    assert lines[1] == "Horovod's operations on the CPU: gloo"


def test_operations_on_the_cpu_are_mpis_where_nothing_else_is_said():
    both = dataclasses.replace(GOOD, built=("mpi", "gloo"))
    assert "Horovod's operations on the CPU: mpi" in doctor.horovod_lines("0.28.1", both)
    gloo = dataclasses.replace(both, cpu_operations="gloo")
    assert "Horovod's operations on the CPU: gloo" in doctor.horovod_lines("0.28.1", gloo)


@pytest.mark.parametrize(
    "facts, changes, is_fault, what_happened, what_to_do",
    [
        (GOOD, {"built": ()}, True, "no operations on the CPU", "python tools/build_horovod.py"),
        (GOOD, {"cpu_operations": "mpi"}, True, "HOROVOD_CPU_OPERATIONS='mpi'", "one of: gloo"),
        (GOOD, {"built_by_tool": False}, False, "Slower", "python tools/build_horovod.py"),
        (GOOD, {"gpus": 1}, False, "Not on a GPU: Horovod's", "build_horovod.py --gpu"),
        (WITH_NCCL, {"nccl_library": ""}, True, "libnccl.so.2 is not found", "Install it"),
    ],
)
def test_what_is_wrong_is_said_with_its_remedy(facts, changes, is_fault, what_happened, what_to_do):
    facts = dataclasses.replace(facts, **changes)
    (line,) = [line for line in doctor.horovod_lines("0.28.1", facts) if what_happened in line]
    assert what_to_do in line
    assert isinstance(line, Fault) == is_fault


def test_horovod_that_does_not_load_is_a_fault(monkeypatch):
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", None)
    (line,) = doctor.horovod_report()
    assert isinstance(line, Fault)
    assert "does not load with TensorFlow" in line and "python tools/build_horovod.py" in line


def test_a_machine_whose_name_has_no_address_is_a_fault(monkeypatch):
    assert list(doctor.host_name_faults()) == []
    monkeypatch.setattr(socket, "gethostname", lambda: "nowhere.invalid")
    faults = [line for line in doctor.horovod_report() if isinstance(line, Fault)]
    assert len(faults) == 1
    assert "segmentation fault" in faults[0]
    assert "Add this line to /etc/hosts: 127.0.1.1 nowhere.invalid" in faults[0]


def test_no_horovod_is_no_fault(monkeypatch):
    def version(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    (line,) = doctor.horovod_report()
    assert line.startswith("Horovod: not installed") and not isinstance(line, Fault)
    assert "python tools/build_horovod.py" in line
    assert 'pip install "tf_onebit[horovod]" --find-links' in line


def test_a_horovod_of_the_tool_is_known_by_its_version(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    import build_horovod

    version = f"{build_horovod.HOROVOD_VERSION}+{build_horovod.local_version()}"
    assert importlib.metadata.version("horovod") == version
    assert doctor.is_built_by_tool(version)
    assert not doctor.is_built_by_tool(build_horovod.HOROVOD_VERSION)  # from PyPI
